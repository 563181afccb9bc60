"""Servers, workers and checks from the command line, and every way in which a user can get them wrong."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.client import Client

from perdure.cli.checks import attribute_type
from perdure.embedded import SEARCH_ATTRIBUTES, EmbeddedServer
from tests.cli.command_line import ROOT, CommandLine, make, until


def test_version(bare: CommandLine) -> None:
    """`--version` prints one line."""
    assert re.fullmatch(r"perdure \S+\n", bare("--version").stdout)


def test_an_interrupt_while_it_loads(bare: CommandLine) -> None:
    """Ctrl-C before the command has begun ends it without a traceback."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "perdure", "list"],
        env=bare.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "temporalio.api.common" not in process.stderr.readline():  # a module of the command line has been loaded
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["worker", "dev"])
def test_a_bad_log_level(bare: CommandLine, agents_file: Path, command: str) -> None:
    """A level that is none is named with those that are; `python worker.py` says the same."""
    said = "PERDURE_LOG: 'foo' is not one of DEBUG, INFO, WARNING, ERROR\n"
    assert bare(command, str(agents_file), code=2, PERDURE_LOG="foo").stderr == f"perdure: {said}"
    done = subprocess.run(
        [sys.executable, str(ROOT / "worker.py"), str(agents_file)],
        env=bare.environment | {"PERDURE_LOG": "foo"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, f"worker: {said}")


def test_a_namespace_that_does_not_exist(perdure: CommandLine, agents_file: Path) -> None:
    """A worker says so before it says that it serves."""
    done = perdure("worker", str(agents_file), code=3, TEMPORAL_NAMESPACE="elsewhere")
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert "has no namespace 'elsewhere'" in done.stderr


def test_doctor_checks_the_data_folder(bare: CommandLine) -> None:
    """A folder that can be made is fine and not made; where none can be made that fails, with what to do."""
    (bare.folder / "file").touch()
    for folder, level, said in (
        (bare.folder / "data" / "below", "ok", "can be made"),
        (bare.folder / "file" / "data", "fail", f"{bare.folder / 'file'} is no folder"),
        (Path("/proc/x"), "fail", "no folder can be made in /proc: "),
    ):
        checks = bare.json("doctor", code=3, PERDURE_DATA_DIR=str(folder))
        (found,) = [check for check in checks if check["name"] == "data folder"]
        assert found["level"] == level
        assert said in found["text"]
        assert (found["fix"] is None) == (level == "ok")
    assert [path.name for path in bare.folder.iterdir()] == ["file"]


@pytest.mark.parametrize("variable", ["PERDURE_EVENTS_FILE", "PERDURE_TRACES_FILE"])
@pytest.mark.parametrize("folder", ["typo", "file"])
def test_a_file_in_no_folder(
    perdure: CommandLine, agents_file: Path, tmp_path: Path, variable: str, folder: str
) -> None:
    """A worker does not start where a file for what it watches would lie in no folder, and makes none."""
    (tmp_path / "file").touch()
    file = tmp_path / folder / "lines.jsonl"
    done = perdure("worker", str(agents_file), code=2, **{variable: str(file)})
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert variable in done.stderr
    assert f": there is no folder '{file.parent}'; make it, or correct the path '{file}'" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "No such command"),
        (["list", "--frobnicate"], "No such option"),
        (["run", "reader"], "Missing argument"),
        (["worker"], "Missing argument"),
        (["list", "--state", "odd"], "Invalid value"),
        (["run", "a", "b", "--limit", "steps"], "perdure: --limit: 'steps' is not of the form name=value"),
        (["run", "a", "b", "--data", "{"], "perdure: --data: this is no JSON"),
        (["run", "a", "b", "--data", "@absent.json"], "perdure: --data: absent.json cannot be read"),
        (["worker", "absent.py"], "perdure: absent.py: no such file"),
        (["dev", "absent.py"], "perdure: absent.py: no such file"),
    ],
)
def test_usage(bare: CommandLine, arguments: list[str], said: str) -> None:
    """A wrong command line exits with 2 and says what is wrong."""
    assert said in bare(*arguments, code=2).stderr


@pytest.mark.parametrize("arguments", [["--limit", "steps=0"], ["--limit", "speed=9"], ["--query", "nonsense ("]])
def test_refused_values(perdure: CommandLine, arguments: list[str]) -> None:
    """A value that the server or the contract refuses is a usage error that names it."""
    command = ["list"] if "--query" in arguments else ["run", "reader", "x"]
    said = perdure(*command, *arguments, code=2).stderr
    assert said.count("\n") == 1
    assert "limits." in said or "invalid query" in said


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["run", "a", "b"], ["show", "x"], ["approvals"], ["approve", "x"], ["init"], ["cancel", "x"]],
)
def test_unreachable(bare: CommandLine, arguments: list[str]) -> None:
    """Without a server every command exits with 3 and one line that names the address."""
    assert bare(*arguments, code=3).stderr == (
        "perdure: no Temporal server answers at 127.0.0.1:1; start one with `perdure dev`, or set TEMPORAL_ADDRESS\n"
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1", "no Agent at module level"),
        ("def f(:", "line 1"),
        ("import absent_module", "line 1: it imports 'absent_module', which is not installed"),
        ("x = 1\nraise RuntimeError('boom')", "bad.py: line 2: RuntimeError: boom"),
        ("from perdure import Agent\na = Agent('a b', 'scripted:x')", "agent 'a b': name"),
        ("raise SystemExit(0)", "SystemExit"),
    ],
)
def test_bad_agents_files(bare: CommandLine, source: str, said: str) -> None:
    """A worker that cannot load its agents exits with 2 and one line; `doctor` says the same."""
    (bare.folder / "bad.py").write_text(source)
    done = bare("worker", "bad.py", code=2)
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("perdure: bad.py: ")
    assert said in done.stderr
    (found,) = [check for check in bare.json("doctor", "bad.py", code=3) if check["name"] == "agents"]
    assert found["level"] == "fail"
    assert said in found["text"]


def test_doctor_finds_keys_and_prices(perdure: CommandLine, tmp_path: Path) -> None:
    """A missing key fails, an unknown price warns, with the variable or the fix named."""
    agents = tmp_path / "models.py"
    agents.write_text(
        "from perdure import Agent\na = Agent('a', 'openai-chat:gpt-5-mini')\nb = Agent('b', 'compatible:home-made')\n"
    )
    url = "http://127.0.0.1:1/v1"
    levels = {
        (c["name"], c["level"]): c["text"] for c in perdure.json("doctor", str(agents), code=1, COMPATIBLE_BASE_URL=url)
    }
    assert "OPENAI_API_KEY" in levels["model of a", "fail"]
    assert "no price is known" in levels["model of b", "warn"]
    assert ("connection", "ok") in levels
    assert ("search attributes", "ok") in levels
    assert "is polled by 1 worker: " in levels["worker", "ok"]
    with_key = perdure("doctor", str(agents), OPENAI_API_KEY="k", COMPATIBLE_BASE_URL=url).stdout
    assert "model of a: openai-chat:gpt-5-mini can be called from here" in with_key


def test_doctor_on_a_healthy_set_up(perdure: CommandLine, agents_file: Path) -> None:
    """Nothing fails, so the exit code is 0; another queue has no worker, which is a warning."""
    assert {check["level"] for check in perdure.json("doctor", str(agents_file))} == {"ok"}
    (worker,) = [c for c in perdure.json("doctor", PERDURE_TASK_QUEUE="deserted2") if c["name"] == "worker"]
    assert worker["level"] == "warn"
    assert "no worker is polling queue 'deserted2'" in worker["text"]


async def test_search_attributes(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """`init` adds what is missing and says what has another type; `doctor` finds both; `list` says what is missing."""
    client = await Client.connect(own_server.address)
    gone = ["PerdureAgent", "PerdureSteps"]
    await client.operator_service.remove_search_attributes(
        RemoveSearchAttributesRequest(namespace="default", search_attributes=gone)
    )
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace="default", search_attributes={"PerdureSteps": attribute_type("Double")})
    )
    perdure = make(tmp_path, own_server.address, "q")
    found = {c["level"]: c for c in perdure.json("doctor", code=1) if c["name"] == "search attributes"}
    assert "PerdureSteps" in found["fail"]["text"]
    assert "PerdureAgent" in found["warn"]["text"]
    assert found["warn"]["fix"] == "run `perdure init`"
    told = perdure.json("init", code=1)
    assert told["PerdureAgent"] == "added"
    assert told["PerdureSteps"] == "conflict: it has the type Double; remove it there first"
    assert {told[name] for name in SEARCH_ATTRIBUTES if name not in gone} == {"exists"}
    assert "PerdureAgent      Keyword  exists" in perdure("init", code=1).stdout


@pytest.mark.slow
def test_dev(bare: CommandLine, agents_file: Path) -> None:
    """`dev` serves on its port and says what to do next; Ctrl-C stops worker and server; runs are kept."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, ui_port = one.getsockname()[1], other.getsockname()[1]
    ports = ["--port", str(port), "--ui-port", str(ui_port)]
    address = f"127.0.0.1:{port}"
    for kept in (0, 1):
        dev = bare.start("dev", str(agents_file), *ports)
        assert dev.stdout is not None
        printed = [dev.stdout.readline() for _ in range(7)]
        assert printed[0] == f"server  127.0.0.1:{port}\n"
        assert printed[4] == f'next    TEMPORAL_ADDRESS=127.0.0.1:{port} perdure run reader "..."\n'
        assert len(bare.json("list", TEMPORAL_ADDRESS=address)) == kept
        assert bare.json("run", "reader", "x", TEMPORAL_ADDRESS=address)["outcome"] == "success"
        until(lambda: len(bare.json("list", TEMPORAL_ADDRESS=address)) == kept + 1)  # noqa: B023  called at once
        taken = bare("dev", str(agents_file), *ports, code=3, PERDURE_DATA_DIR=str(bare.folder / "other"))
        assert f"port {port} on 127.0.0.1 cannot be used" in taken.stderr
        dev.send_signal(signal.SIGINT)
        out, _ = dev.communicate(timeout=60)
        assert dev.returncode == 0
        assert printed[6].startswith("Ctrl-C stops both;")
        assert out.endswith("\nthe server is stopped\n")
        assert EmbeddedServer.running(bare.folder / "data") is None


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """What a command prints, up to the line that has the word."""
    assert process.stdout is not None
    printed = ""
    while word not in printed:
        line = process.stdout.readline()
        assert line, f"it has ended after: {printed}"
        printed += line
    return printed


@pytest.mark.slow
def test_dev_beside_another(bare: CommandLine, agents_file: Path) -> None:
    """A second one says whose server it uses, that the queue has a worker, and what it ignores; the last stops it."""
    first = bare.start("dev", str(agents_file), "--port", str(_free_port()))
    address = read_until(first, "Ctrl-C stops both").split()[1]
    second = bare.start("dev", str(agents_file), "--port", "7000", "--ui-port", "7001")
    printed = read_until(second, "Ctrl-C")
    assert "already runs" in printed
    assert "using it; the last process that uses it stops it" in printed
    assert "Ctrl-C stops the worker;" in printed
    first.send_signal(signal.SIGINT)
    assert first.communicate(timeout=60)[0].endswith("\nthe server is left running\n")
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=60)
    assert out.endswith("\nthe server is stopped\n")
    assert "another worker polls queue 'nobody'; all workers of a queue must serve the same agents" in err
    assert f"--port 7000 is ignored: the running server has {address}\n" in err
    assert "--ui-port 7001 is ignored" in err
    assert EmbeddedServer.running(bare.folder / "data") is None


@pytest.mark.slow
def test_dev_after_a_killed_one(bare: CommandLine, agents_file: Path) -> None:
    """The server that a killed one left is taken over without a warning of its worker, and stopped at the end."""
    first = bare.start("dev", str(agents_file), "--port", str(_free_port()))
    read_until(first, "Ctrl-C")
    first.kill()
    first.communicate(timeout=60)
    assert EmbeddedServer.running(bare.folder / "data") is not None
    second = bare.start("dev", str(agents_file))
    printed = read_until(second, "Ctrl-C stops both")
    assert "the process that started it has gone, so it is taken over and stopped at the end" in printed
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=60)
    assert (second.returncode, err) == (0, "")
    assert out.endswith("\nthe server is stopped\n")
    assert EmbeddedServer.running(bare.folder / "data") is None


@pytest.mark.slow
def test_dev_leaves_the_server_of_a_stranger(bare: CommandLine, agents_file: Path) -> None:
    """A server that no user of the folder started is used and left."""
    with EmbeddedServer(bare.folder / "data", headless=True):
        dev = bare.start("dev", str(agents_file))
        assert "using it, and leaving it running at the end" in read_until(dev, "Ctrl-C stops the worker")
        dev.send_signal(signal.SIGINT)
        assert dev.communicate(timeout=60)[0].endswith("\nthe server is left running\n")
        assert EmbeddedServer.running(bare.folder / "data") is not None


@pytest.mark.slow
def test_dev_notices_that_its_server_dies(bare: CommandLine, agents_file: Path) -> None:
    """It ends with 1 and one line that names the log."""
    dev = bare.start("dev", str(agents_file), "--port", str(_free_port()))
    read_until(dev, "Ctrl-C")
    server = EmbeddedServer.running(bare.folder / "data")
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    _, err = dev.communicate(timeout=60)
    assert dev.returncode == 1
    log = bare.folder / "data" / "temporal.log"
    assert f"perdure: the Temporal server of {bare.folder / 'data'} has ended by itself; see {log}\n" in err
    assert "Traceback" not in err


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
