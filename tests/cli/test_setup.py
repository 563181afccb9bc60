"""Servers, workers and checks from the command line, and every way in which a user can get them wrong."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.client import Client

from perdure.cli.checks import attribute_type
from perdure.embedded import SEARCH_ATTRIBUTES, EmbeddedServer
from tests.cli.command_line import CommandLine, make, until


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
        ("import absent_module", "imports 'absent_module', which is not installed"),
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
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
        "from perdure import Agent\n"
        "a = Agent('a', 'openai-chat:gpt-5-mini')\n"
        "b = Agent('b', 'compatible:home-made')\n"
        "c = Agent('c', 'nonesuch:x')\n"
    )
    url = "http://127.0.0.1:1/v1"
    levels = {
        (c["name"], c["level"]): c["text"] for c in perdure.json("doctor", str(agents), code=1, COMPATIBLE_BASE_URL=url)
    }
    assert "OPENAI_API_KEY" in levels["model of a", "fail"]
    assert "no price is known" in levels["model of b", "warn"]
    assert "no provider 'nonesuch'" in levels["model of c", "fail"]
    assert ("connection", "ok") in levels
    assert ("search attributes", "ok") in levels
    assert "polls queue" in levels["worker", "ok"]
    with_key = perdure("doctor", str(agents), code=1, OPENAI_API_KEY="k", COMPATIBLE_BASE_URL=url).stdout
    assert "model of a: openai-chat:gpt-5-mini can be called from here" in with_key


def test_doctor_on_a_healthy_set_up(perdure: CommandLine, agents_file: Path) -> None:
    """Nothing fails, so the exit code is 0; another queue has no worker, which is a warning."""
    assert {check["level"] for check in perdure.json("doctor", str(agents_file))} == {"ok"}
    (worker,) = [c for c in perdure.json("doctor", PERDURE_TASK_QUEUE="deserted2") if c["name"] == "worker"]
    assert worker["level"] == "warn"
    assert "no worker is polling queue 'deserted2'" in worker["text"]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server whose search attributes may be changed."""
    with EmbeddedServer(tmp_path / "server", headless=True) as server:
        yield server


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
        dev.communicate(timeout=60)
        assert dev.returncode == 0
        assert EmbeddedServer.running(bare.folder / "data") is None
