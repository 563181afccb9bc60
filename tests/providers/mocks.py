"""Servers that others wrote in place of vendors: installed by their exact version, run on loopback, asked what came."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.processes import wait_for

INSTALLING = 300
"""Seconds after which an installation counts as impossible."""

AIMOCK, AIMOCK_VERSION = "@copilotkit/aimock", "1.43.0"
OLDEST_NODE = (20, 15)

_ADDRESS = re.compile(r"(?:running|listening) on (http://127\.0\.0\.1:[1-9]\d*)")


@dataclass(frozen=True)
class MockServer:
    """A server that runs; paths begin with /."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def get(self, path: str) -> Any:
        """What the server tells of itself as JSON."""
        return httpx2.get(f"{self.url}{path}", headers=self.headers, timeout=30).raise_for_status().json()

    def post(self, path: str, body: Any = None) -> None:
        """Tell the server what to do."""
        httpx2.post(f"{self.url}{path}", json=body, headers=self.headers, timeout=30).raise_for_status()


def install(*commands: Sequence[str]) -> None:
    """Run the commands of an installation; the test is skipped with the reason where one cannot be done."""
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALLING, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{' '.join(command[:2])} cannot be run here: {error}")
        if done.returncode:
            told = [line for line in (done.stderr or done.stdout).splitlines() if "error" in line.lower()]
            pytest.skip(f"{command[-1]} cannot be installed here: {(told or ['(no reason given)'])[0].strip()}")


@contextmanager
def running(
    command: Sequence[str], log: Path, *, bearer: str = "", within: float = 30.0, **environment: str
) -> Iterator[MockServer]:
    """Run a server that prints its address, until the block ends; it is ended by its own pid.

    `bearer` is the key that it wants from us too, `within` the seconds that it may take to start.
    """
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **environment}
        )

    def address() -> str:
        text = log.read_text(errors="replace")
        assert process.poll() is None, f"{command[0]} ended with {process.returncode}: {text[-2_000:]}"
        found = _ADDRESS.search(text)
        return found.group(1) if found else ""

    try:
        yield MockServer(wait_for(address, f"{command[0]} tells its address", within), headers)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@contextmanager
def running_aimock(folder: Path, secret: str) -> Iterator[MockServer]:
    """A mock of all vendors without answers, which refuses everything with 404, and with 401 without the key."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        pytest.skip("node and npm are not here")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_NODE:
        pytest.skip(f"the mock needs node 20.15 or newer, not {version.strip()}")
    install([npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"{AIMOCK}@{AIMOCK_VERSION}"])
    nothing = folder / "nothing.json"
    nothing.write_text('{"fixtures": []}')
    program = folder / "node_modules" / AIMOCK / "dist" / "cli.js"
    command = [node, str(program), "-p", "0", "-f", str(nothing)]
    with running(command, folder / "log", bearer=secret, AIMOCK_API_KEYS=secret) as server:
        yield server


def python_environment(folder: Path, requirement: str) -> Path:
    """The folder of the commands of a package that is installed apart from ours: it needs other versions."""
    pip = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]
    install([sys.executable, "-m", "venv", str(folder)], [*pip, requirement])
    return folder / "bin"
