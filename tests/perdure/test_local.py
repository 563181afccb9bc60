"""Agents in a plain script with no server: real scripts in processes of their own, killed where that is the point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import (
    Agent,
    AlreadyStarted,
    ConfigError,
    InvalidInput,
    MessageRefused,
    Model,
    NoSuchRun,
    RunFailed,
    ToolContext,
    tool,
)
from perdure.embedded import EmbeddedServer
from perdure.local_process import QUEUE, whose
from perdure.shared_server import Origin, SharedServer

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import os, pathlib, sys, time
import perdure
from perdure import Agent, Approval, Model, tool

@tool(effect="read")
def work(step: int) -> str:
    "Work."
    with open("ledger.txt", "a") as ledger:
        ledger.write(f"{step} ")
    return f"done {step}"

@tool(effect="read", timeout="60s", heartbeat="2s")
def wait() -> str:
    "Wait."
    pathlib.Path("waiting").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    return "waited"

def agent(name, *script, tools=()):
    return Agent(name, Model(provider="scripted", params={"script": list(script)}), tools=list(tools))

echo = agent("echo", {"text": "you said {{user}}"})
slow = agent("slow", {"calls": [{"tool": "work", "arguments": {"step": 1}}]}, {"calls": [{"tool": "wait"}]},
    {"text": "{{tool:c1}}, {{tool:c2}}"}, tools=[work, wait])
"""


def start(folder: Path, body: str, name: str = "script.py") -> subprocess.Popen[str]:
    """A script in a process of its own, with the agents above."""
    script = folder / name
    script.write_text(HEAD + textwrap.dedent(body))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
    return subprocess.Popen(
        [sys.executable, str(script)],
        cwd=folder,
        # Settings of another server must not matter.
        env={**kept, "PYTHONPATH": str(ROOT), "TEMPORAL_ADDRESS": "127.0.0.1:1", "TEMPORAL_API_KEY": "k"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """What a script printed; it ended with this code and said nothing on standard error."""
    out, err = process.communicate(timeout=90)
    assert (process.returncode, err) == (code, "")
    return out


def until_exists(path: Path) -> None:
    """Wait for a file."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} has not come"
        time.sleep(0.02)


@pytest.mark.slow
def test_scripts_end_cleanly(tmp_path: Path) -> None:
    """Ten scripts in a row run an agent and end with their own exit code, and none leaves a server."""
    for turn in range(10):
        out = finish(start(tmp_path, f"print(echo.run_sync('hi {turn}').output)\nsys.exit({turn % 2})"), code=turn % 2)
        assert out == f"you said hi {turn}\n"
    assert EmbeddedServer.running(tmp_path / ".perdure") is None


@pytest.mark.slow
@pytest.mark.parametrize("served", ["slow", ""])
def test_a_killed_script_goes_on(tmp_path: Path, served: str) -> None:
    """After kill -9 the same script with the same id resumes the run: what was done is not done again."""
    body = f"with perdure.local({served}) as p:\n    print(p.run(slow, 'go', id='job-1').output)"
    first = start(tmp_path, body)
    until_exists(tmp_path / "waiting")
    first.kill()
    first.communicate()
    (tmp_path / "go").touch()
    assert finish(start(tmp_path, body)) == "done 1, waited\n"
    assert (tmp_path / "ledger.txt").read_text() == "1 "
    assert finish(start(tmp_path, body)) == "done 1, waited\n"
    assert EmbeddedServer.running(tmp_path / ".perdure") is None


@pytest.mark.slow
def test_two_scripts_share_a_server(tmp_path: Path) -> None:
    """Scripts of one folder run side by side, each with its own agents; the last one stops the server."""
    body = "with perdure.local() as p:\n    print(p.run({}, 'a').output)"
    first = start(tmp_path, body.format("echo"), "first.py")
    second = start(tmp_path, body.format("slow"), "second.py")
    assert finish(first) == "you said a\n"
    (tmp_path / "go").touch()
    assert finish(second) == "done 1, waited\n"
    assert EmbeddedServer.running(tmp_path / ".perdure") is None


@pytest.mark.slow
def test_a_terminated_script_leaves_no_server_for_ever(tmp_path: Path) -> None:
    """SIGTERM ends a script at once; the next user of the folder takes its server over and stops it."""
    process = start(tmp_path, "with perdure.local() as p:\n    p.run(slow, 'go', id='job-3')")
    until_exists(tmp_path / "waiting")
    process.terminate()
    process.communicate()
    assert EmbeddedServer.running(tmp_path / ".perdure") is not None
    shared = SharedServer(tmp_path / ".perdure")
    shared.open()
    assert shared.origin is Origin.ORPHAN
    assert shared.close()
    assert EmbeddedServer.running(tmp_path / ".perdure") is None


@pytest.mark.slow
def test_an_interrupted_script_leaves_its_run(tmp_path: Path) -> None:
    """Ctrl-C ends the wait and the server; the run is there for the next process."""
    process = start(
        tmp_path,
        """
        try:
            with perdure.local() as p:
                p.run(slow, 'go', id='job-2')
        except KeyboardInterrupt:
            print('interrupted')
        """,
    )
    until_exists(tmp_path / "waiting")
    process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert finish(process) == "interrupted\n"
    body = "with perdure.local({}) as p:\n    print(p.handle('job-2').result().output)"
    assert finish(start(tmp_path, body.format("slow"))) == "done 1, waited\n"
    assert finish(start(tmp_path, body.format(""))) == "done 1, waited\n"


@tool(effect="write", approval=True)
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


@tool(effect="read")
def state(ctx: ToolContext) -> str:
    """What the lifespan yields."""
    return str(ctx.state)


def scripted(name: str, *script: dict[str, Any], tools: tuple[Any, ...] = ()) -> Agent:
    """An agent whose model follows a script."""
    return Agent(name, Model(provider="scripted", params={"script": list(script)}), tools=tools)


PAYER = scripted(
    "payer", {"calls": [{"tool": "pay", "arguments": {"to": "bob"}}]}, {"text": "{{last_tool_text}}"}, tools=(pay,)
)


async def test_on_a_running_loop(tmp_path: Path) -> None:
    """It works where a loop runs already, as in a notebook; runs are started, asked and told without `await`."""
    with perdure.local(data_dir=tmp_path) as p:
        run = p.start(PAYER, "pay", id="one")
        deadline = time.monotonic() + 30
        while not p.approvals():
            assert time.monotonic() < deadline
        assert run.status().state == "waiting_approval"
        with pytest.raises(MessageRefused, match="no call 'c7' waits"):
            run.approve("c7")
        run.approve(by="ann")
        assert run.result().output == "paid bob"
        assert p.run("payer", "pay", id="one").output == "paid bob"
        with pytest.raises(AlreadyStarted, match="is of agent 'payer'"):
            p.run(scripted("other", {"text": "x"}), "hi", id="one")
        assert [event.type for event in run.events().events][-1] == "run_ended"
        for after in ("x", -1, True, None):
            with pytest.raises(InvalidInput, match="after: must be the number of an event"):
                run.stream(after=after)  # type: ignore[arg-type]
        for prompt, said in (
            (None, "prompt: give either"),
            (5, "prompt: must be a text"),
            (b"", "prompt: must not be"),
        ):
            with pytest.raises(InvalidInput, match=said):
                p.run(PAYER, prompt, id="never")  # type: ignore[arg-type]
        with pytest.raises(NoSuchRun):
            p.handle("never")
        assert (run.usage().steps, len(run.conversation())) == (2, 4)
        assert "one" in {found.id for found in p.list()}


def test_an_open_run_needs_its_agent(tmp_path: Path) -> None:
    """A run that is still open cannot be waited for while nothing is served; the error says what to do."""
    with perdure.local(data_dir=tmp_path) as p:
        p.start(PAYER, "pay", id="open")
    with perdure.local(data_dir=tmp_path) as p, pytest.raises(ConfigError, match=r"perdure\.local\(agent\)"):
        p.handle("open")


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ("perdure-local-my-bill-0123abcd", r"belongs to the script my-bill\.py, which does not run; run it, from the"),
        ("perdure", "no worker serves its queue 'perdure'; start one with `perdure dev`"),
    ],
)
async def test_a_run_of_another_script(tmp_path: Path, queue: str, said: str) -> None:
    """An open run that nothing goes on with is refused with whose it is, instead of being waited for."""
    with perdure.local(PAYER, data_dir=tmp_path) as p:
        server = EmbeddedServer.running(tmp_path)
        assert server is not None
        other = await perdure.Client.connect(address=server.address, task_queue=queue)
        await other.start(PAYER, "pay", id="theirs")
        with pytest.raises(ConfigError, match=f"'theirs' is open, and {said}"):
            p.run(PAYER, "pay", id="theirs")


def test_a_run_of_an_interactive_session() -> None:
    """It has no script that could be named."""
    assert whose(QUEUE).startswith("belongs to an interactive session")


def test_agents_come_while_it_is_open(tmp_path: Path) -> None:
    """An agent given to `run` is served from then on, and one of the same name replaces it, as in a notebook."""
    with perdure.local(data_dir=tmp_path) as p:
        for words in ("first", "second"):
            assert p.run(scripted("changing", {"text": words}, tools=(state,)), "x").output == words
        with pytest.raises(RunFailed, match="no agent 'unknown'"):
            p.run("unknown", "x")
    with pytest.raises(ConfigError, match="not open"):
        p.run("changing", "x")


@pytest.mark.slow
def test_a_file_and_its_lifespan(tmp_path: Path) -> None:
    """Agents of a file are served with its lifespan; that of an agent's own module is entered when it comes later."""
    source = """
        from contextlib import asynccontextmanager
        from perdure import Agent, Model, ToolContext, tool

        @asynccontextmanager
        async def lifespan():
            yield "open {name}"

        @tool(effect="read")
        def state_{name}(ctx: ToolContext) -> str:
            "State."
            return str(ctx.state)

        agent = Agent("{name}", Model(provider="scripted", params={{"script": [
            {{"calls": [{{"tool": "state_{name}"}}]}}, {{"text": "{{{{last_tool_text}}}}"}}]}}), tools=[state_{name}])
    """
    for name in ("filed", "given"):
        (tmp_path / f"{name}_agents.py").write_text(textwrap.dedent(source.format(name=name)))
    done = start(
        tmp_path,
        """
        with perdure.local("filed_agents.py") as p:
            print(p.run("filed", "x").output)
        from given_agents import agent as given
        with perdure.local() as p:
            p.run(echo, "x")
            print(p.run(given, "x").output)
        """,
    )
    assert finish(done) == "open filed\nopen given\n"


@pytest.mark.parametrize("field", ["data_dir", "events_file", "on_event"])
def test_what_is_no_path_or_function(field: str) -> None:
    """It is named at once."""
    with pytest.raises(ConfigError, match=f"^{field}: must be a .*, not 5$"):
        perdure.local(**{field: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["absent.py", "absent_module"])
def test_what_cannot_be_served(tmp_path: Path, target: str) -> None:
    """A file or module that is not there is named, and no server is left."""
    with pytest.raises(ConfigError, match=target), perdure.local(target, data_dir=tmp_path):
        pass
    assert EmbeddedServer.running(tmp_path) is None


def test_a_name_needs_a_served_agent(tmp_path: Path) -> None:
    """A run by name that nothing would serve is refused before it is started."""
    with perdure.local(data_dir=tmp_path) as p:
        with pytest.raises(ConfigError, match="no agent is served yet"):
            p.run("clerk", "hello")
        assert p.list() == []
