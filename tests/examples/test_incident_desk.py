"""The incident desk as its user runs it: a process, its output, its exit code, and the tickets in its table."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from perdure.embedded import EmbeddedServer
from perdure.messages import AssistantMessage, CallPart, Message, ToolMessage, UserMessage, text
from perdure.model_call import ModelReply, ModelRequest, RawCall, RawText
from providers.scripted import play

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
DESK = ROOT / "examples" / "incident_desk"
COMMAND = [sys.executable, str(DESK / "run.py")]
SCRIPT = json.loads((DESK / "script.json").read_text())
CHOICE = ("OPENAI_API_KEY", "COMPATIBLE_BASE_URL", "COMPATIBLE_API_KEY", "COMPATIBLE_MODEL")
"""Variables that decide which model plays."""


@dataclass(frozen=True)
class Ended:
    """What a run of the example left behind."""

    code: int
    output: str
    errors: str
    data_dir: Path

    @property
    def report(self) -> list[str]:
        """The rows of the report."""
        return [line for line in self.output.splitlines() if line.startswith("│")]

    @property
    def tickets(self) -> list[tuple[str, str]]:
        """Run and severity of all tickets in the table."""
        with closing(sqlite3.connect(self.data_dir / "tickets.db")) as db:
            return db.execute("SELECT run_id, severity FROM tickets").fetchall()


def environment(data_dir: Path, **variables: str) -> dict[str, str]:
    """The environment of a run in a folder, with no model but the one that is given."""
    own = {name: value for name, value in os.environ.items() if name not in CHOICE}
    return own | {"PERDURE_DATA_DIR": str(data_dir)} | variables


def run_desk(data_dir: Path, *flags: str, **variables: str) -> Ended:
    """Run the example to its end."""
    done = subprocess.run(
        [*COMMAND, *flags],
        env=environment(data_dir, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr, data_dir)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run without a key, in a fresh folder."""
    return run_desk(tmp_path_factory.mktemp("plain"))


def test_the_job_ends_with_a_report_and_one_ticket(plain: Ended) -> None:
    """Without a key a script plays the model, says so, and ends with the report that the logs prove."""
    assert (plain.code, plain.errors) == (0, "")
    assert "a script plays the model" in plain.output
    assert "approving as desk-operator, in your place" in plain.output
    assert "matched: the report says 11, the logs say 10" in plain.output
    shown = {row.split("│")[1].strip(): row.split("│")[2].strip() for row in plain.report}
    expected = {"gateway_502": "11", "failed_payments": "15", "matched": "10", "unmatched": "req_2ff9cad3"}
    assert shown | expected | {"ticket": "1"} == shown
    assert [severity for _, severity in plain.tickets] == ["high"]


def test_it_says_where_to_look_and_leaves_nothing_running(plain: Ended) -> None:
    """The end names the run and how to see it again; neither server nor worker outlives the program."""
    ((run_id, _),) = plain.tickets
    assert f"workflow show --workflow-id {run_id}" in plain.output
    assert "dev examples" in plain.output or f"dev {DESK}" in plain.output
    assert EmbeddedServer.running(plain.data_dir) is None


def test_killed_workers_change_nothing(plain: Ended, tmp_path: Path) -> None:
    """With the worker killed in the middle of a step and while the approval waits, the job ends the same."""
    killed = run_desk(tmp_path, "--kill")
    assert (killed.code, killed.errors) == (0, "")
    assert killed.output.count("got SIGKILL") == 2
    assert killed.report == plain.report
    assert len(killed.tickets) == 1


def test_each_run_in_a_folder_has_its_own_ticket(plain: Ended) -> None:
    """A further run in the same folder is another run, with another ticket."""
    again = run_desk(plain.data_dir)
    assert again.code == 0
    runs = [run_id for run_id, _ in again.tickets]
    assert len(runs) == len(set(runs)) == 2


def test_a_server_that_runs_already_is_used_and_kept(tmp_path: Path) -> None:
    """The program uses the server of its folder where there is one, and does not stop it."""
    with EmbeddedServer(tmp_path, headless=True) as server:
        ended = run_desk(tmp_path)
        assert ended.code == 0
        assert f"{server.address}, already running" in ended.output
        assert f"--address {server.address}" in ended.output
        assert EmbeddedServer.running(tmp_path) == server.endpoint


def test_interrupted_it_stops_what_it_started(tmp_path: Path) -> None:
    """Ctrl-C in the middle ends the program with one line, and its server and worker with it."""
    with subprocess.Popen(
        COMMAND, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if " worker " in line)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.count("\n") == 1
    assert EmbeddedServer.running(tmp_path) is None
    with pytest.raises(ProcessLookupError):
        os.kill(int(line.split("process ")[1].split()[0]), 0)


def test_a_folder_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    """What prevents the start is said in a line, and the exit code is not zero."""
    (tmp_path / "file").write_text("")
    failed = run_desk(tmp_path / "file" / "data")
    assert (failed.code, failed.output) == (1, "")
    assert failed.errors.startswith("incident desk: ")
    assert failed.errors.count("\n") == 1
    assert str(tmp_path / "file") in failed.errors


def test_a_model_behind_an_address_does_the_same_job(plain: Ended, tmp_path: Path, chat_server: ChatServer) -> None:
    """With COMPATIBLE_BASE_URL that model plays: the same calls over Chat Completions lead to the same report."""
    ended = run_desk(
        tmp_path,
        COMPATIBLE_BASE_URL=chat_server.url,
        COMPATIBLE_MODEL="shop-model",
        COMPATIBLE_API_KEY="key-of-the-shop",
    )
    assert (ended.code, ended.errors) == (0, "")
    assert "compatible:shop-model" in ended.output
    assert "a script plays" not in ended.output
    assert "no price is known" in ended.output
    assert ended.report == plain.report
    assert len(ended.tickets) == 1
    assert chat_server.keys == {"Bearer key-of-the-shop"}
    assert {(body["model"], body["stream"]) for body in chat_server.bodies} == {("shop-model", True)}
    asked = sum(len(script) for script in SCRIPT.values())
    assert len(chat_server.bodies) == asked
    assert f"Tokens    {100 * asked} in and {10 * asked} out" in ended.output
    assert "key-of-the-shop" not in ended.output


# --- a Chat Completions server that follows the same script -----------------------------------------------------------


@dataclass
class ChatServer:
    """What the server was asked; `url` is its base URL."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)


@pytest.fixture
def chat_server() -> Iterator[ChatServer]:
    """A streaming Chat Completions server on loopback."""
    seen = ChatServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seen.bodies.append(body)
            seen.keys.add(self.headers.get("authorization", ""))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for chunk in stream(play(request_of(body)).reply):
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        seen.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield seen
        server.shutdown()
        thread.join()


def request_of(body: Mapping[str, Any]) -> ModelRequest:
    """A request from the wire, with the script of the agent that sends it and its calls named c1, c2, ..."""
    names: dict[str, str] = {}
    messages: list[Message] = []
    for wire in body["messages"]:
        if wire["role"] == "user":
            messages.append(UserMessage(role="user", parts=text(wire["content"])))
        elif wire["role"] == "tool":
            messages.append(ToolMessage(role="tool", call=names[wire["tool_call_id"]], parts=text(wire["content"])))
        elif wire["role"] == "assistant":
            calls = wire.get("tool_calls", [])
            names |= {call["id"]: f"c{number}" for number, call in enumerate(calls, len(names) + 1)}
            parts = tuple(CallPart(type="call", id=names[c["id"]], tool=c["function"]["name"]) for c in calls)
            messages.append(AssistantMessage(role="assistant", parts=parts))
    system = body["messages"][0]["content"]
    agent = next(
        name
        for name, words in {
            "incident_desk": "incident desk",
            "gateway_analyst": "`gateway`",
            "payments_analyst": "",
        }.items()
        if words in system
    )
    return ModelRequest(
        model=body["model"], instructions=system, messages=tuple(messages), params={"script": SCRIPT[agent]}
    )


def stream(reply: ModelReply) -> Iterator[dict[str, Any]]:
    """The chunks of a reply: its text and the arguments of its calls in pieces, and the usage at the end."""
    for part in reply.parts:
        if isinstance(part, RawText):
            for piece in pieces(part.text):
                yield delta({"content": piece})
    for index, part in enumerate(part for part in reply.parts if isinstance(part, RawCall)):
        function = {"name": part.tool, "arguments": ""}
        call = {"index": index, "id": f"call-{os.urandom(4).hex()}", "type": "function", "function": function}
        yield delta({"tool_calls": [call]})
        for piece in pieces(json.dumps(part.arguments)):
            yield delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield delta({}, "tool_calls" if any(isinstance(part, RawCall) for part in reply.parts) else "stop")
    yield {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}}


def delta(value: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """A chunk with one choice."""
    return {"choices": [{"index": 0, "delta": value, "finish_reason": finish}]}


def pieces(whole: str) -> Iterator[str]:
    """A text in pieces of 40 characters."""
    return (whole[start : start + 40] for start in range(0, len(whole), 40))
