"""The embedded server, really started: what it is set to, what it survives, and how it says why it cannot start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.embedded import SEARCH_ATTRIBUTES, EmbeddedServer, EmbeddedServerError, find_binary
from perdure.errors import ConfigError, PerdureError


def databases(folder: Path) -> list[str]:
    """The names of the servers' database files in a folder."""
    return sorted(path.name for path in folder.glob("temporal-*.db"))


def kill_hard(pid: int) -> None:
    """Kill a child process and wait for its end, which its owner can still learn."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def log_of(server: EmbeddedServer) -> str:
    """What a server has written."""
    return server.log.read_text()


async def test_the_namespace_is_set_up(temporal_server: EmbeddedServer) -> None:
    """Closed runs are kept 90 days, and Perdure's search attributes are registered with their types."""
    client = await Client.connect(temporal_server.address)
    namespace = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
    assert namespace.config.workflow_execution_retention_ttl.ToTimedelta() == timedelta(days=90)
    listed = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace="default"))
    types = {1: "Text", 2: "Keyword", 3: "Int", 4: "Double"}
    registered = {name: types.get(kind) for name, kind in listed.custom_attributes.items()}
    assert registered == dict(SEARCH_ATTRIBUTES)


async def test_settings_are_taken(tmp_path: Path) -> None:
    """A value of one's own for the dynamic configuration works, and the server complains of none."""
    async with EmbeddedServer(tmp_path, headless=True, dynamic_config={"limit.maxIDLength": "40"}) as server:
        client = await Client.connect(server.address)
        with pytest.raises(RPCError, match="exceeds maximum allowed length"):
            await client.start_workflow("W", id="x" * 41, task_queue="q")
        log = log_of(server)
        assert "error" not in log.lower()


async def test_runs_survive_kill_9(tmp_path: Path) -> None:
    """After kill -9 a server on the same folder starts on the same file, and the run is there."""
    async with EmbeddedServer(tmp_path, headless=True) as first:
        client = await Client.connect(first.address)
        await client.start_workflow("Never", id="kept", task_queue="nobody")
        files = databases(tmp_path)
        kill_hard(first.pid)
        assert EmbeddedServer.running(tmp_path) is None
        async with EmbeddedServer(tmp_path, headless=True) as second:
            again = await Client.connect(second.address)
            described = await again.get_workflow_handle("kept").describe()
            assert described.status == WorkflowExecutionStatus.RUNNING
            assert databases(tmp_path) == files
            await first.stop()
            assert EmbeddedServer.running(tmp_path) == second.endpoint


def test_a_live_server_is_found_and_not_doubled(tmp_path: Path) -> None:
    """A second server on the folder is refused with the address of the first, which `running` gives, with its UI."""
    assert EmbeddedServer.running(tmp_path) is None
    with EmbeddedServer(tmp_path) as server:
        assert server.ui_address is not None
        assert EmbeddedServer.running(tmp_path) == server.endpoint
        host, port = server.ui_address.removeprefix("http://").split(":")
        socket.create_connection((host, int(port))).close()
        with pytest.raises(EmbeddedServerError, match=f"in use by a Temporal server at {server.address}"):
            EmbeddedServer(tmp_path, headless=True).open()
        pid = server.pid
    assert EmbeddedServer.running(tmp_path) is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(EmbeddedServerError, match="not started"):
        _ = server.address


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"address": "127.0.0.1:1", "pid": 2**22 + 1})])
def test_a_stale_record_is_no_server(tmp_path: Path, text: str) -> None:
    """What a killed process left in `server.json`, whole or broken, is not taken for a server."""
    (tmp_path / "server.json").write_text(text)
    assert EmbeddedServer.running(tmp_path) is None


def test_given_ports_are_used(tmp_path: Path) -> None:
    """The port that was asked for is the server's, and the UI's that of its own."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        port, ui_port = one.getsockname()[1], two.getsockname()[1]
    with EmbeddedServer(tmp_path, port=port, ui_port=ui_port) as server:
        assert server.address == f"127.0.0.1:{port}"
        assert server.ui_address == f"http://127.0.0.1:{ui_port}"


@pytest.mark.parametrize("which", ["port", "ui_port"])
def test_a_taken_port_is_named(tmp_path: Path, which: str) -> None:
    """A port that something else listens on is named in the error, before a server is started."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = EmbeddedServer(tmp_path, port=port) if which == "port" else EmbeddedServer(tmp_path, ui_port=port)
        with pytest.raises(EmbeddedServerError, match=f"port {port} on 127.0.0.1"):
            server.open()
    assert not (tmp_path / "server.json").exists()


def test_a_port_that_is_none_is_named(tmp_path: Path) -> None:
    """A number too large for a port is an error that names it."""
    with pytest.raises(EmbeddedServerError, match="port 70000 on"):
        EmbeddedServer(tmp_path, port=70_000).open()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dynamic_config": {"x": "not json"}}, "invalid dynamic config"),
        ({"extra_args": ["--no-such-flag"]}, "no-such-flag"),
        ({"extra_args": ["--db-filename", "/nowhere/at/all.db"]}, "no such file or directory"),
    ],
)
def test_a_crash_at_start_is_told(tmp_path: Path, options: dict[str, object], said: str) -> None:
    """A server that ends at once is an error with its own last words and the place of its log."""
    with pytest.raises(EmbeddedServerError, match=said) as caught:
        EmbeddedServer(tmp_path, headless=True, **options).open()  # type: ignore[arg-type]
    assert str(tmp_path / "temporal.log") in str(caught.value)
    assert isinstance(caught.value, PerdureError)
    assert EmbeddedServer.running(tmp_path) is None


@pytest.mark.parametrize("times", [1, 100])
def test_a_panic_at_start_is_tried_again(tmp_path: Path, times: int) -> None:
    """A server that panics once, as on a busy machine, is started again; one that always does is told by its words."""
    panicking, count = tmp_path / "panicking", tmp_path / "count"
    panicking.write_text(f"""#!/bin/sh
if [ "$2" = start-dev ] && [ "$(cat {count} 2>/dev/null | wc -l)" -lt {times} ]; then
  echo once >> {count}
  printf 'panic: no free port\\n\\ngoroutine 1 [running]:\\nmain.main()\\n\\tmain.go:18 +0x8e\\n' >&2
  exit 2
fi
exec {find_binary()} "$@"
""")
    panicking.chmod(0o755)
    server = EmbeddedServer(tmp_path / "data", binary=panicking, headless=True)
    if times == 1:
        with server:
            assert server.alive
        return
    with pytest.raises(EmbeddedServerError, match="saying 'panic: no free port'"):
        server.open()
    assert count.read_text().count("once") > 1


@pytest.mark.slow
def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    """A database that is none is an error that says so, and after it the folder is free again."""
    with EmbeddedServer(tmp_path, headless=True):
        pass
    (database,) = tmp_path.glob("temporal-*.db")
    for path in tmp_path.glob("temporal-*.db*"):
        path.unlink()
    database.write_bytes(b"no database at all" * 100)
    with pytest.raises(EmbeddedServerError, match="not a database"):
        EmbeddedServer(tmp_path, headless=True).open()
    database.unlink()
    with EmbeddedServer(tmp_path, headless=True) as server:
        assert server.address


def test_a_missing_command_line_says_how_to_get_it(tmp_path: Path) -> None:
    """Neither in the scripts' folder nor on PATH, a path to nothing, and another program: each names the extra."""
    with pytest.raises(ConfigError, match=r"perdure\[embedded\]"):
        find_binary(scripts=tmp_path, path=str(tmp_path))
    with pytest.raises(ConfigError, match=r"absent cannot be run.*perdure\[embedded\]"):
        EmbeddedServer(tmp_path, binary=tmp_path / "absent").open()
    other = tmp_path / "temporal"
    other.write_text("#!/bin/sh\necho 1.0\n")
    other.chmod(0o755)
    with pytest.raises(ConfigError, match=r"is not Temporal's command line"):
        EmbeddedServer(tmp_path, binary=other).open()
    assert find_binary(scripts=tmp_path / "none", path=str(tmp_path)) == other


@pytest.mark.slow
async def test_a_cancelled_start_leaves_no_server(tmp_path: Path) -> None:
    """Whoever stops waiting for a start gets no server that nobody owns."""
    server = EmbeddedServer(tmp_path, headless=True)
    starting = asyncio.create_task(server.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert EmbeddedServer.running(tmp_path) is None
    async with EmbeddedServer(tmp_path, headless=True) as again:
        assert again.address
