"""`perdure` as a process of its own, with an environment that is known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class CommandLine:
    """Runs `perdure` with an environment; `output` is what the last command printed."""

    environment: dict[str, str]
    folder: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __call__(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and check its exit code."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        return subprocess.CompletedProcess(arguments, code, out, err)

    def ended(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, whatever its exit code: it may be about runs of other tests too."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in err
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str, code: int = 0, **environment: str) -> Any:
        """Run a command with `--json`; what it prints is exactly one document."""
        return json.loads(self(*arguments, "--json", code=code, **environment).stdout)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command; it is stopped at the end of the test session at the latest."""
        process = subprocess.Popen(
            [sys.executable, "-m", "perdure", *arguments],
            env=self.environment | environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        """Stop what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=60)


def make(folder: Path, address: str, queue: str) -> CommandLine:
    """A command line with nothing of this process's own settings in its environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "PERDURE_")) and "API_KEY" not in k}
    return CommandLine(
        {
            **kept,
            "PYTHONPATH": str(ROOT),
            "TEMPORAL_ADDRESS": address,
            "PERDURE_TASK_QUEUE": queue,
            "PERDURE_DATA_DIR": str(folder / "data"),
        },
        folder,
    )


def pending(perdure: CommandLine, id: str) -> Any:
    """The calls of one run that wait; the inbox would ask the runs of other tests too."""
    done = perdure.ended("show", id, "--json")
    return json.loads(done.stdout)["status"]["pending"] if done.returncode == 0 else []  # it may not have begun yet


def until(look: Callable[[], Any], seconds: float = 30) -> Any:
    """What `look` returns as soon as it is something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it has not come"
        time.sleep(0.05)
    return found
