"""The quickstart is followed to the letter: every block is run, and what it prints is what the page says."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "quickstart.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"PYTHON|PERDURE_|TEMPORAL_|OPENAI_|COMPATIBLE_|VIRTUAL_ENV")
SERVES = "Ctrl-C stops"
"""What `perdure dev` says last when it is ready."""


class Terminal:
    """A shell that keeps its folder and environment from block to block."""

    def __init__(self, folder: Path, name: str, environment: dict[str, str]) -> None:
        self._log = folder / f"{name}.log"
        self._log.touch()
        self._seen = 0
        self._number = 0
        with self._log.open("wb") as output:
            self._shell = subprocess.Popen(
                ["bash", "--norc"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                cwd=folder / "work",
                env=environment,
                start_new_session=True,
            )

    def send(self, block: str) -> None:
        """Type a block."""
        assert self._shell.stdin is not None
        self._seen = len(self._log.read_text())
        self._shell.stdin.write(block)
        self._shell.stdin.flush()

    def run(self, block: str) -> str:
        """Type a block, wait until it has ended, and return what it printed."""
        self._number += 1
        end = f"--- end of block {self._number} ---"
        self.send(f"{block}\necho; echo '{end}'\n")
        self.await_text(end)
        return self.shown.replace(end, "")

    @property
    def shown(self) -> str:
        """What was printed since the last block was typed."""
        return self._log.read_text(errors="replace")[self._seen :]

    def await_text(self, text: str) -> None:
        """Wait until it has printed something."""
        wait_for(lambda: text in self.shown, f"{text!r} in {self.shown[-2_000:]}", within=240)

    def close(self) -> None:
        """End the shell and what it has started."""
        assert self._shell.stdin is not None
        with suppress(BrokenPipeError):
            self._shell.stdin.close()
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGTERM)
        try:
            self._shell.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait(10)


def free_ports() -> tuple[int, int]:
    """Two ports that nobody uses now."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[tuple[Terminal, Terminal]]:
    """Two shells in an empty folder, with this checkout's wheel to install and ports of their own for `dev`."""
    (tmp_path / "work").mkdir()
    dist = tmp_path / "dist"
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(dist), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    port, ui_port = free_ports()
    environment = {name: value for name, value in os.environ.items() if not OURS.match(name)}
    environment |= {
        "PIP_FIND_LINKS": str(dist),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "TEMPORAL_ADDRESS": f"127.0.0.1:{port}",
        "COLUMNS": "200",
        "PYTHONUNBUFFERED": "1",
    }
    ports = f'perdure() {{ if [ "$1" = dev ]; then command perdure "$@" --port {port} --ui-port {ui_port}; '
    ports += 'else command perdure "$@"; fi; }\n'
    made = Terminal(tmp_path, "first", environment), Terminal(tmp_path, "second", environment)
    for terminal in made:
        terminal.run(ports)
    yield made
    for terminal in made:
        terminal.close()


def test_every_block_of_the_quickstart(tmp_path: Path, terminals: tuple[Terminal, Terminal]) -> None:
    """Files are written, commands typed, outputs compared, in the order of the page."""
    first, second = terminals
    shown = ""
    for kind, body in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            name = re.match(r"# (\S+)\n", body)
            assert name is not None, body
            (tmp_path / "work" / name.group(1)).write_text(body)
        elif kind == "text":
            assert_shown(body, shown)
        elif body.startswith("# terminal 1\n"):
            first.send(f". .venv/bin/activate\n{body}")
            first.await_text(SERVES)
            shown = first.shown
        else:
            assert kind == "sh", kind
            shown = second.run(body)


def assert_shown(expected: str, shown: str) -> None:
    """The lines stand in what was printed, in this order; `…` is anything, as a line any lines."""
    lines = iter(shown.splitlines())
    for wanted in expected.splitlines():
        if wanted == "…":
            continue
        pattern = re.compile(".*".join(re.escape(part.rstrip()) for part in wanted.split("…")) + r"\s*")
        assert any(pattern.fullmatch(line) for line in lines), f"{wanted!r} is not, or not there, in\n{shown}"


def test_a_line_that_differs_is_found() -> None:
    """The comparison lets `…` stand for anything and nothing else."""
    assert_shown("a …\n…\nd\n", "a b\nc\nd\n")
    with pytest.raises(AssertionError, match="is not"):
        assert_shown("a x\n", "a b\n")
    with pytest.raises(AssertionError, match="is not"):
        assert_shown("d\na …\n", "a b\nc\nd\n")
