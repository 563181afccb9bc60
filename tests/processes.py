"""Real processes for tests: workers started and killed by their own pid, and Temporal's command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from perdure.embedded import find_binary

ROOT = Path(__file__).resolve().parent.parent
POLL = 0.03
"""Seconds between two looks at a condition."""

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, within: float = 30.0) -> T:
    """Poll until `condition` gives something true and return it; raises AssertionError after `within` seconds."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(POLL)
    return found


async def eventually(condition: Callable[[], Awaitable[T]], what: str, within: float = 30.0) -> T:
    """Do the same for an async condition."""
    deadline = time.monotonic() + within
    while not (found := await condition()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        await asyncio.sleep(POLL)
    return found


class WorkerProcess:
    """`python worker.py agents.py` as a process of its own; `log` is what it prints."""

    def __init__(
        self,
        agents: Path,
        *,
        address: str,
        queue: str,
        data_dir: Path,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "PERDURE_"))}
        profile = data_dir / "temporal.toml"  # empty, so that no profile of the user counts
        profile.touch()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "worker.py"), str(agents)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=data_dir,
                env={
                    **kept,
                    "TEMPORAL_ADDRESS": address,
                    "TEMPORAL_CONFIG_FILE": str(profile),
                    "PERDURE_TASK_QUEUE": queue,
                    "PERDURE_DATA_DIR": str(data_dir),
                    **(environment or {}),
                },
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def serving(self) -> bool:
        """Whether it has said that it serves; raises AssertionError with its output where it has ended."""
        text = self.log.read_text(errors="replace")
        assert self.alive, f"the worker ended with {self._process.returncode}: {text[-2_000:]}"
        return "worker: serving" in text

    def await_serving(self) -> WorkerProcess:
        """Wait until it serves."""
        wait_for(lambda: self.serving, "the worker serves")
        return self

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, as the kernel or a power cut does."""
        self._process.kill()
        self._process.wait(10)

    def terminate(self) -> None:
        """Ask it to stop, as an orchestrator does."""
        self.send(signal.SIGTERM)

    def wait(self, within: float) -> int:
        """Its exit code; raises subprocess.TimeoutExpired after `within` seconds."""
        return self._process.wait(within)

    def close(self) -> None:
        """Leave nothing behind, even of a stopped process."""
        if self.alive:
            self.kill()


class Cli:
    """Temporal's own command line against one server."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._binary = str(find_binary())

    def run(self, *arguments: str, within: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a command; nothing is asserted of its exit code."""
        command = [self._binary, "--disable-config-file", "--disable-config-env", *arguments]
        command += ["--address", self._address, "--namespace", "default"]
        return subprocess.run(command, capture_output=True, text=True, timeout=within, check=False)

    def json(self, *arguments: str, within: float = 30.0) -> Any:
        """What a command prints as JSON; raises AssertionError where it fails."""
        done = self.run(*arguments, "-o", "json", within=within)
        assert done.returncode == 0, f"{arguments}: {done.stderr or done.stdout}"
        return json.loads(done.stdout)

    def query(self, workflow_id: str, name: str, *inputs: str) -> Any:
        """The answer of a query as JSON."""
        [answer] = self.json("workflow", "query", "-w", workflow_id, "--name", name, *given(inputs))["queryResult"]
        return answer


def given(inputs: Sequence[str]) -> list[str]:
    """`--input` for each JSON text."""
    return [argument for text in inputs for argument in ("--input", text)]
