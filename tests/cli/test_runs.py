"""Runs from the command line: started, followed, shown, spoken to."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from perdure.cli.runs import show_status
from perdure.status import OpenQuestion, RunStatus
from tests.cli.command_line import CommandLine, pending, until
from tests.processes import Cli

pytestmark = pytest.mark.slow


def waiting(perdure: CommandLine, id: str, count: int = 1) -> Any:
    """The calls of a run that wait, as soon as there are so many."""
    return until(lambda: len(found := pending(perdure, id)) == count and found)


def test_a_run_is_followed_to_its_result(perdure: CommandLine, new_id: str) -> None:
    """The steps, calls and the answer are printed; text of strangers is neither markup nor control characters."""
    done = perdure("run", "reader", "weather in Oslo", "--id", new_id)
    assert "step 1: [red]looking" in done.stdout
    assert '-> c1 look {"city": "Oslo"}' in done.stdout
    assert done.stdout.endswith("\nIt is Oslo [bold]9C[/bold] [31mred\n")
    assert "\x1b" not in done.stdout


def test_json_is_one_document(perdure: CommandLine, new_id: str) -> None:
    """`run --json` prints the id and the result, and nothing else."""
    result = perdure.json("run", "reader", "x", "--id", new_id, "--data", '{"a":1}', "--limit", "steps=5")
    assert result["id"] == new_id
    assert result["outcome"] == "success"
    assert (result["steps"], result["tool_calls"]) == (2, 1)


@pytest.mark.parametrize(
    ("agent", "arguments", "outcome", "said"),
    [
        ("broken", [], "failed", "no such thing"),
        ("nobody", [], "invalid_input", "this worker has no agent 'nobody'"),
        ("reader", ["--limit", "steps=1"], "budget_exceeded", ""),
    ],
)
def test_a_run_that_does_not_succeed(
    perdure: CommandLine, agent: str, arguments: list[str], outcome: str, said: str
) -> None:
    """The exit code is 1; the document says how the run ended, standard error says why."""
    done = perdure("run", agent, "x", *arguments, "--json", code=1)
    assert json.loads(done.stdout)["outcome"] == outcome
    assert said in done.stderr


def test_the_same_id_again(perdure: CommandLine, new_id: str) -> None:
    """An id that exists is refused with what there is."""
    perdure("run", "reader", "x", "--id", new_id)
    again = perdure("run", "reader", "x", "--id", new_id, code=1)
    assert again.stderr == (
        f"perdure: run '{new_id}' exists already and is completed; see it with `perdure show {new_id}`, "
        f"follow it with `perdure events {new_id} --follow`, or give another id\n"
    )


def test_approval_while_following(perdure: CommandLine, new_id: str) -> None:
    """Without a terminal `run` says how to approve, and goes on when somebody does; the decision is in the log."""
    following = perdure.start("run", "payer", "pay", "--id", new_id)
    (call,) = waiting(perdure, new_id)
    assert call["arguments"] == {"to": "bob"}
    assert re.search(rf'^{new_id} +c1 +pay +{{"to": "bob"}} ', perdure.ended("approvals").stdout, re.M)
    inbox = json.loads(perdure.ended("approvals", "--json").stdout)
    assert [one for one in inbox if one["run"] == new_id] == [call]
    wrong = perdure("approve", new_id, "c1", "--digest", "sha256:other", code=1)
    assert "digest does not match" in wrong.stderr
    edited = ["--arguments", '{"to":"eve"}', "--by", "ann", "--reason", "[b]fine"]
    assert perdure.json("approve", new_id, *edited) == {"call_id": "c1", "open": False}
    out, _ = following.communicate(timeout=60)
    assert following.returncode == 0
    assert f"perdure approve {new_id} c1" in out
    changed = 'c1 pay approved by ann: [b]fine with changed arguments {"to": "eve"}'
    for shown in (out, perdure("show", new_id).stdout):
        assert changed in shown
        assert '-> c1 pay {"to": "eve"}' in shown
    assert "paid eve" in out
    for shown in (out, perdure("events", new_id).stdout):
        assert re.search(r"(waits for approval until |deadline=)\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+$", shown, re.M)
    assert perdure("approve", new_id, code=1).stderr == f"perdure: run '{new_id}' has ended\n"


def test_a_question_is_shown_with_its_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """The options are listed, and the command that is shown can be used as it is."""
    question = OpenQuestion(question_id="q-c1", text="Did it happen?", options=("it did", "no"))
    show_status(RunStatus(id="one", run_id="r", state="waiting_answer", temporal="running", questions=[question]))
    asked = "asks      Did it happen? (it did | no): perdure answer one q-c1 'it did'"
    assert asked in capsys.readouterr().out


def test_two_calls_wait(perdure: CommandLine, new_id: str) -> None:
    """Without a call id two waiting calls are ambiguous; each is then decided by its own."""
    perdure("run", "twice", "pay", "--id", new_id, "--no-follow")
    waiting(perdure, new_id, 2)
    unclear = perdure("approve", new_id, code=1)
    assert "waiting now: c1, c2" in unclear.stderr
    assert perdure("approve", new_id, "c1").stdout == f"approved c1 of {new_id}\n"
    assert perdure("deny", new_id, "c2", "--reason", "too much").stdout == f"denied c2 of {new_id}\n"
    assert perdure("events", new_id, "--follow").stdout.splitlines()[-1].endswith("run_ended outcome=success")
    output = perdure.json("show", new_id)["result"]["output"]
    assert output.startswith("Done: paid ann, not executed: denied by ")
    assert "too much" in output


def test_messages(perdure: CommandLine, new_id: str) -> None:
    """`say` is taken, an `answer` without a question is refused, `cancel` waits for the end; then all are refused."""
    perdure("run", "payer", "pay", "--id", new_id, "--no-follow")
    waiting(perdure, new_id)
    assert perdure("say", new_id, "hurry").stdout == f"said to {new_id}\n"
    assert "no question 'q-c1' is open" in perdure("answer", new_id, "q-c1", "done", code=1).stderr
    assert perdure.json("cancel", new_id) == {"id": new_id, "outcome": "cancelled"}
    for command in (["say", new_id, "x"], ["stop", new_id], ["cancel", new_id], ["deny", new_id, "c1"]):
        assert "has ended" in perdure(*command, code=1).stderr
    status = perdure.json("show", new_id)["status"]
    assert (status["state"], status["outcome"], status["pending"]) == ("closed", "cancelled", [])


def test_stop_keeps_what_there_is(perdure: CommandLine, new_id: str) -> None:
    """A stopped run ends without success, and says that it was stopped."""
    following = perdure.start("run", "payer", "pay", "--id", new_id, "--json")
    waiting(perdure, new_id)
    perdure("stop", new_id, "--reason", "lunch")
    out, _ = following.communicate(timeout=60)
    assert following.returncode == 1
    assert json.loads(out)["reason"] == "stopped"


def test_lists_and_logs(perdure: CommandLine, new_id: str) -> None:
    """A run is found by agent and state and shown with its steps; its log can be read from a cursor as JSON lines."""
    perdure("run", "reader", "about Oslo", "--id", new_id)
    listed = until(
        lambda: [r for r in perdure.json("list", "--agent", "reader", "--state", "closed") if r["id"] == new_id]
    )
    assert (listed[0]["outcome"], listed[0]["steps"], listed[0]["prompt"]) == ("success", 2, "about Oslo")
    assert perdure("list", "--agent", "o'brien").stdout == "no runs\n"
    assert new_id in perdure("list", "--query", f"WorkflowId='{new_id}'").stdout
    log = [json.loads(line) for line in perdure("events", new_id, "--format", "jsonl").stdout.splitlines()]
    assert [event["n"] for event in log] == list(range(1, len(log) + 1))
    assert perdure("events", new_id, "--after", str(len(log) - 1)).stdout.count("\n") == 1
    shown = perdure("show", new_id).stdout
    assert "= Oslo [bold]9C[/bold] [31mred" in shown
    assert "state     success" in shown


def test_unknown_runs(perdure: CommandLine) -> None:
    """A run that does not exist is named, with the address that was asked."""
    address = perdure.environment["TEMPORAL_ADDRESS"]
    for command in (["show", "nope"], ["say", "nope", "x"], ["cancel", "nope"], ["events", "nope"]):
        done = perdure(*command, code=1)
        assert done.stderr == f"perdure: no run 'nope' in namespace 'default' of {address}\n"


def test_no_worker(perdure: CommandLine, new_id: str) -> None:
    """`run` says which queue nobody polls, where, and goes on waiting; Ctrl-C leaves the run alone.

    Each question to such a run takes as long as a worker may take for its answer, and the server holds one at a time:
    another run is shown meanwhile.
    """
    queue, other = {"PERDURE_TASK_QUEUE": "deserted"}, f"{new_id}-other"
    perdure("run", "reader", "x", "--id", other, "--no-follow", code=1, **queue)
    following = perdure.start("run", "reader", "x", "--id", new_id, **queue)
    shown = perdure("show", other).stdout
    assert "stuck     no worker is polling queue 'deserted'" in shown
    assert "spent     unknown" in shown
    assert following.stderr is not None
    said = following.stderr.readline()
    assert f"no worker is polling queue 'deserted' at {perdure.environment['TEMPORAL_ADDRESS']}" in said
    assert said.endswith("; still waiting, and Ctrl-C leaves the run as it is\n")
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=60)
    assert following.returncode == 130
    assert err == (
        f"perdure: run {new_id} goes on; follow it with `perdure events {new_id} --follow`, "
        f"see it with `perdure show {new_id}`, end it with `perdure cancel {new_id}`\n"
    )
    (listed,) = until(lambda: perdure.json("list", "--query", f"WorkflowId='{new_id}'"))
    assert (listed["state"], listed["agent"]) == ("open", "reader")
    inbox = perdure("approvals", code=1)
    assert "nothing waits for approval" not in inbox.stdout
    assert new_id not in inbox.stdout
    assert re.search(rf"^perdure: \d+ runs could not be asked: [^;]*\b{new_id}, {other}\b[^;]*; ", inbox.stderr)
    for id in (new_id, other):
        assert Cli(perdure.environment["TEMPORAL_ADDRESS"]).run("workflow", "terminate", "-w", id).returncode == 0


@pytest.mark.parametrize(("typed", "told"), [(["y"], "paid bob"), (["x", "n", "too much"], "too much")])
def test_approval_on_a_terminal(perdure: CommandLine, new_id: str, typed: list[str], told: str) -> None:
    """On a terminal the call is shown and asked: yes runs it, no asks why, and the model is told."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "run", "payer", "pay", "--id", new_id],
        env=perdure.environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    cues = [(b"approve? y or n", 1), (b"y or n", 2), (b"why?", 1)]
    seen = b""
    try:
        while data := _read(master):
            seen += data
            if typed and seen.count(cues[0][0]) >= cues[0][1]:
                os.write(master, f"{typed.pop(0)}\n".encode())
                cues.pop(0)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert told in seen.decode()


def _read(file: int) -> bytes:
    try:
        return os.read(file, 4096)
    except OSError:  # the end of a terminal whose process has gone
        return b""
