"""`perdure replay`: what replays, what differs and where, and everything that is no history."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent
from perdure.embedded import EmbeddedServer
from perdure.testing import reply, scripted
from tests.checkout import PACKAGES, ROOT
from tests.cli.command_line import CommandLine, pending, until
from tests.conftest import Serve
from tests.processes import Cli

pytestmark = pytest.mark.slow

Changed = Callable[[str, str, str], str]


@pytest.fixture(scope="session")
def histories(perdure: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with exported histories: of a run with a tool, one that waits for approval, one of an unknown agent."""
    folder = tmp_path_factory.mktemp("histories")
    perdure("run", "reader", "go", "--id", "looked")
    perdure("run", "payer", "go", "--id", "waits", "--no-follow")
    perdure("run", "nobody", "go", "--id", "refused", code=1)
    until(lambda: pending(perdure, "waits"))
    for name in ("looked", "waits", "refused"):
        perdure("export", name, "--output", str(folder / f"{name}.json"))
    return folder


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    """Another checkout, in which one text of one file is another; it is the value for PYTHONPATH."""

    def make(file: str, old: str, new: str) -> str:
        folder = tmp_path / "other"
        for package in PACKAGES:
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "worker.py", folder)
        path = folder / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
        path.write_text(text.replace(old, new))
        return str(folder)

    return make


def results(found: list[dict[str, Any]]) -> dict[str, str]:
    """The results by the name of the file or run."""
    return {Path(one["run"]).stem: one["result"] for one in found}


def test_a_folder_of_histories(bare: CommandLine, histories: Path) -> None:
    """Every file of a folder replays, without a server; progress and result are for people."""
    done = bare("replay", "--history", str(histories))
    assert done.stdout.endswith("\nthis code replays 3 of 3 runs\n")
    assert re.search(r"looked\.json +[0-9a-f-]{36} +\d+ +fine", done.stdout)


def test_files_as_the_shell_gives_them(bare: CommandLine, histories: Path) -> None:
    """Several files may follow one --history, or each have its own; --json has one entry for each, in order."""
    files = [str(histories / f"{name}.json") for name in ("waits", "looked")]
    for arguments in (["--history", *files], ["--history", files[0], "--history", files[1]]):
        found = bare.json("replay", *arguments, "--jobs", "1")
        assert list(results(found).items()) == [("waits", "fine"), ("looked", "fine")]
    assert set(found[0]) == {"run", "run_id", "events", "result"}


def test_runs_of_the_server(perdure: CommandLine, histories: Path) -> None:
    """By id, by id and run id, by a query, and all open ones; one that is not there does not hide the others."""
    looked = perdure.json("replay", "looked")
    assert results(looked) == {"looked": "fine"}
    assert perdure.json("replay", f"looked:{looked[0]['run_id']}") == looked
    assert results(perdure.json("replay", "--query", "WorkflowId IN ('looked', 'refused')")) == {
        "looked": "fine",
        "refused": "fine",
    }
    assert len(perdure.json("replay", "--query", "WorkflowId IN ('looked', 'refused')", "--limit", "1")) == 1
    opened = results(json.loads(perdure.ended("replay", "--json").stdout))
    assert opened["waits"] == "fine"
    assert "looked" not in opened
    found = perdure.json("replay", "nix", "looked", code=1)
    assert results(found) == {"nix": "missing", "looked": "fine"}
    assert "no run 'nix' in namespace 'default'" in found[0]["message"]
    other_run = "looked:00000000-0000-4000-8000-000000000000"
    assert perdure.json("replay", other_run, code=1)[0]["result"] == "missing"


def test_no_runs(perdure: CommandLine) -> None:
    """Where there is nothing to replay, that is said, and is no failure."""
    done = perdure("replay", "--query", "WorkflowId='nix'")
    assert done.stdout == "no runs, so nothing was replayed\n"
    assert perdure.json("replay", "--query", "WorkflowId='nix'") == []


MODEL_CALL = "        run, label = self._run, self.spec.models[0].name or self.spec.models[0].provider\n"
STEP = "        run.account.steps += 1\n"
CHANGES = {
    "a new step before each model call": (
        ("workflows/runtime.py", MODEL_CALL, f"        await workflow.sleep(1)\n{MODEL_CALL}"),
        {"looked": "the model call of step 1", "waits": "the model call of step 1"},
        "a timer",
    ),
    "another id for calls": (
        ("workflows/attempts.py", "name = task.call if number == 0 else", "name = f'{task.call}.9' if True else"),
        {"looked": "the tool call c1 look"},
        "the tool call c1 look, scheduled for the 9. time",
    ),
    "an early end": (
        ("workflows/agent.py", "ending = await self._with", "return Plain()\n            ending = await self._with"),
        dict.fromkeys(("looked", "waits", "refused"), "the resolving of the agent"),
        "the end of the run with a result",
    ),
    "a step less": (
        ("workflows/agent.py", "        workflow.upsert_memo(", "        dict("),
        {"looked": "the update of the run's memo", "waits": "the update of the run's memo"},
        "the update of the run's search attributes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changed_code_differs(bare: CommandLine, histories: Path, changed: Changed, name: str) -> None:
    """It is said for each run which event differs, what the history has there, and what the code wants."""
    change, recorded, wanted = CHANGES[name]
    path = changed(*change)
    found = bare.json("replay", "--history", str(histories), code=1, PYTHONPATH=path)
    told = {Path(one["run"]).stem: one for one in found}
    assert {name: one["recorded"] for name, one in told.items() if one["result"] == "differs"} == recorded
    assert {one["wanted"] for one in told.values() if one["result"] == "differs"} == {wanted}
    for name, words in recorded.items():
        event = json.loads((histories / f"{name}.json").read_text())["events"][told[name]["event_id"] - 1]
        assert (event["eventType"] == "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED") == ("memo" not in words)


def test_a_difference_is_told(bare: CommandLine, histories: Path, changed: Changed) -> None:
    """People read which event differs, what each side has there, and what to do."""
    change, _, wanted = CHANGES["a new step before each model call"]
    done = bare("replay", "--history", str(histories), code=1, PYTHONPATH=changed(*change))
    said = f"differs at event 13: the history has the model call of step 1, this code wants {wanted}"
    assert f"{histories / 'looked.json'}: {said}" in done.stdout
    assert "worker versioning" in done.stdout
    assert done.stdout.endswith("\nthis code replays 1 of 3 runs\n")


def test_one_command_more_at_the_end(bare: CommandLine, histories: Path, changed: Changed) -> None:
    """What the code wants beyond the last command of an open run is found too: a worker would stick on it later."""
    asked = "        if self._run.approvals.open:\n"
    path = changed("workflows/calls.py", asked, f"{asked}            asyncio.ensure_future(workflow.sleep(99))\n")
    found = results(bare.json("replay", "--history", str(histories), code=1, PYTHONPATH=path))
    assert found == {"looked": "fine", "waits": "differs", "refused": "fine"}


def test_code_that_raises(bare: CommandLine, histories: Path, changed: Changed) -> None:
    """It is said after which event it raised, what, and in which line."""
    path = changed("workflows/runtime.py", STEP, f"        {{}}['x']\n{STEP}")
    found = bare.json("replay", "--history", str(histories), code=1, PYTHONPATH=path)
    assert results(found) == {"looked": "failed", "waits": "failed", "refused": "fine"}
    looked = next(one for one in found if "looked" in one["run"])
    assert looked["recorded"] == "the end of the model call of step 1"
    assert re.search(r"KeyError: 'x' \(.*workflows/runtime\.py:\d+\)", looked["message"])


def test_code_that_hangs(bare: CommandLine, histories: Path, changed: Changed) -> None:
    """A replay that loops is cut off after its time, and the others are replayed all the same."""
    path = changed("workflows/runtime.py", STEP, f"        while True: pass\n{STEP}")
    arguments = ("replay", "--history", str(histories), "--timeout", "3s", "--jobs", "1")
    found = bare.json(*arguments, code=1, PYTHONPATH=path)
    assert results(found) == {"looked": "timeout", "waits": "timeout", "refused": "fine"}
    assert "did not end within 3 s" in found[0]["message"]


@pytest.mark.parametrize("code", ["raise RuntimeError('broken')", "import os; os._exit(4)"])
def test_code_that_cannot_be_loaded(bare: CommandLine, histories: Path, changed: Changed, code: str) -> None:
    """Nothing is replayed, and one line says why."""
    first = "from __future__ import annotations\n"
    path = changed("workflows/runner.py", first, f"{first}{code}\n")
    done = bare("replay", "--history", str(histories), code=1, PYTHONPATH=path)
    assert done.stdout == ""
    assert done.stderr.startswith("perdure: this code cannot be loaded")
    assert done.stderr.count("\n") == 1


def test_code_that_ends_its_process(bare: CommandLine, histories: Path, changed: Changed) -> None:
    """A run whose replay takes the process with it is named, and the others are replayed."""
    path = changed("workflows/runtime.py", STEP, f"        import ctypes; ctypes.string_at(0)\n{STEP}")
    found = bare.json("replay", "--history", str(histories), "--jobs", "1", code=1, PYTHONPATH=path)
    assert results(found) == {"looked": "failed", "waits": "failed", "refused": "fine"}


def events_of(histories: Path) -> list[dict[str, Any]]:
    """The events of an exported history."""
    found: list[dict[str, Any]] = json.loads((histories / "looked.json").read_text())["events"]
    return found


NO_HISTORIES: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str, str]] = {
    "nothing": (lambda events: "", "unreadable", "is no JSON"),
    "half": (lambda events: json.dumps(events)[:500], "unreadable", "is no JSON"),
    "a number": (lambda events: 7, "unreadable", "it has no list of `events`"),
    "an object": (lambda events: {"event": events}, "unreadable", "it has no list of `events`"),
    "no events": (lambda events: {"events": []}, "unreadable", "is empty"),
    "words": (lambda events: {"events": ["a", "b"]}, "unreadable", "is no history"),
    "the second half": (lambda events: {"events": events[9:]}, "unreadable", "does not begin with the start of a run"),
    "a gap": (lambda events: {"events": events[:5] + events[8:]}, "unreadable", "events are missing before event 9"),
    "another type": (
        lambda events: {"events": json.loads(json.dumps(events).replace("AgentWorkflow", "Invoice"))},
        "foreign",
        "is a run of workflow type 'Invoice', not of AgentWorkflow",
    ),
    "a list": (lambda events: events, "fine", ""),
    "a field of a newer server": (lambda events: [{**event, "nix": 1} for event in events], "fine", ""),
    "the start only": (lambda events: events[:1], "fine", ""),
    "the first task": (lambda events: events[:3], "fine", ""),
}


def test_what_is_no_history(bare: CommandLine, histories: Path) -> None:
    """Each is told from the others, names its file, and hides no other."""
    folder = bare.folder / "given"
    folder.mkdir()
    for name, (make, _, _) in NO_HISTORIES.items():
        made = make(events_of(histories))
        (folder / f"{name}.json").write_text(made if isinstance(made, str) else json.dumps(made))
    found = bare.json("replay", "--history", str(folder), code=1)
    assert results(found) == {name: result for name, (_, result, _) in NO_HISTORIES.items()}
    shown = bare("replay", "--history", str(folder), code=1).stdout
    for one in found:
        _, result, said = NO_HISTORIES[Path(one["run"]).stem]
        if result != "fine":
            assert said in one["message"]
            assert f"{one['run']}: {one['message'][:40]}" in shown


def test_another_workflow_type(perdure: CommandLine, cli_server: EmbeddedServer, new_id: str) -> None:
    """A run of another program is told as such, by its id; a query finds runs of agents only."""
    start = ("workflow", "start", "--type", "Invoice", "--task-queue", "elsewhere", "--workflow-id", new_id)
    assert Cli(cli_server.address).run(*start).returncode == 0
    found = perdure.json("replay", new_id, code=1)
    assert results(found) == {new_id: "foreign"}
    assert perdure.json("replay", "--query", f"WorkflowId='{new_id}'") == []


def test_a_store_that_cannot_be_reached(
    perdure: CommandLine, cli_server: EmbeddedServer, new_id: str, tmp_path: Path
) -> None:
    """A history whose large values are elsewhere is no difference: it is said so. An export holds them."""
    perdure("run", "reader", "x" * 100_000, "--id", new_id)
    shown = tmp_path / "shown.json"
    shown.write_text(Cli(cli_server.address).run("workflow", "show", "-w", new_id, "-o", "json").stdout)
    (tmp_path / "empty" / "blobs").mkdir(parents=True)
    empty = str(tmp_path / "empty")
    for arguments in (["--history", str(shown)], [new_id]):
        assert perdure.json("replay", *arguments)[0]["result"] == "fine"
        [found] = perdure.json("replay", *arguments, code=1, PERDURE_DATA_DIR=empty)
        assert found["result"] == "no_store"
        assert "is not in" in found["message"]
    assert "PERDURE_*" in perdure("replay", new_id, code=1, PERDURE_DATA_DIR=empty).stdout
    exported = tmp_path / "exported.json"
    perdure("export", new_id, "--output", str(exported))
    assert perdure.json("replay", "--history", str(exported), PERDURE_DATA_DIR=empty)[0]["result"] == "fine"


async def test_an_input_in_another_store(serve: Serve, data_dir: Path, bare: CommandLine) -> None:
    """A run whose very input cannot be read from here is not called different either."""
    agent = Agent("reader", scripted(reply("ok")))
    lab = await serve(agent)
    run = await lab.start(agent, "x" * 100_000)
    assert (await run.result())["outcome"] == "success"
    file = bare.folder / "run.json"
    file.write_text((await run.handle.fetch_history()).to_json())
    arguments = ("replay", "--history", str(file))
    found = await asyncio.to_thread(bare.json, *arguments, PERDURE_DATA_DIR=str(data_dir))
    assert found[0]["result"] == "fine"
    found = await asyncio.to_thread(bare.json, *arguments, code=1)
    assert found[0]["result"] == "no_store"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--history", "nix"], "--history: there is no nix"),
        (["--history", "."], "--history: folder . has no *.json"),
        (["a", "--query", "b"], "--query: give ids, --history or --query"),
        (["a", "--limit", "3"], "--limit: is for the runs that a query finds"),
        (["a", "--timeout", "soon"], "--timeout: 'soon' is not a duration"),
        (["a", "--timeout", "0"], "--timeout: '0' must be longer than zero"),
        (["a", "--jobs", "0"], "--jobs"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_wrong_usage(bare: CommandLine, arguments: list[str], said: str) -> None:
    """The option is named; the exit code is 2."""
    assert said in bare("replay", *arguments, code=2).stderr


def test_a_wrong_query(perdure: CommandLine) -> None:
    """The server's words about a query are shown; the exit code is 2."""
    assert "the server refused it" in perdure("replay", "--query", "Nix~1", code=2).stderr


def test_no_server(bare: CommandLine) -> None:
    """Without a connection the exit code is 3."""
    assert "no Temporal server answers" in bare("replay", code=3).stderr


def test_help(bare: CommandLine) -> None:
    """It says what is not needed, and what the exit codes mean."""
    said = " ".join(bare("replay", "--help").stdout.split())
    assert "The agents file is not needed" in said
    assert "exit code is 0 if all replay" in said


def replaying(parent: int) -> list[str]:
    """The process ids of a command's replaying processes."""
    return subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False).stdout.split()


def lives(pid: str) -> bool:
    """Whether a process is there, and not only its exit code."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left(bare: CommandLine, histories: Path, changed: Changed, number: signal.Signals) -> None:
    """Where the command is interrupted or killed, a replay that loops ends with it."""
    path = changed("workflows/runtime.py", STEP, f"        while True: pass\n{STEP}")
    command = bare.start("replay", "--history", str(histories / "looked.json"), PYTHONPATH=path)
    [pid] = until(lambda: replaying(command.pid))
    command.send_signal(number)
    _, err = command.communicate(timeout=30)
    assert command.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    assert "Traceback" not in err
    until(lambda: not lives(pid))
