"""Shell completion: commands and options, and ids that only the server knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine, until

pytestmark = pytest.mark.slow

SCRIPT = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={at}
_perdure_completion perdure
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def launcher(folder: Path) -> str:
    """A PATH on which `perdure` is this checkout."""
    path = folder / "bin" / "perdure"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m perdure "$@"\n')
    path.chmod(0o755)
    return f"{path.parent}:{os.environ['PATH']}"


def offered(perdure: CommandLine, folder: Path, *words: str, **environment: str) -> list[str]:
    """What bash offers for the last word, with the script that `perdure` itself installs."""
    variables = {**perdure.environment, **environment, "PATH": launcher(folder), "HOME": str(folder)}
    installed = folder / ".bash_completions" / "perdure.sh"
    if not installed.exists():
        done = subprocess.run(
            ["bash", "-c", "perdure --install-completion; true"],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert installed.exists(), done.stdout + done.stderr
    quoted = " ".join(f"'{word}'" for word in ("perdure", *words))
    script = SCRIPT.format(script=installed, words=quoted, at=len(words))
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_for_shells(bare: CommandLine, shell: str) -> None:
    """Each shell gets a script that calls `perdure` back."""
    assert "_PERDURE_COMPLETE=complete_" + shell in bare(_PERDURE_COMPLETE=f"source_{shell}").stdout


def test_commands(bare: CommandLine, tmp_path: Path) -> None:
    """Commands and options are completed without a server."""
    assert offered(bare, tmp_path, "app") == ["approvals", "approve"]
    assert offered(bare, tmp_path, "doctor", "--h") == ["--here", "--help"]


def test_ids(perdure: CommandLine, tmp_path: Path, new_id: str) -> None:
    """Runs, agents and the calls that wait are offered, as the server knows them."""
    perdure("run", "payer", "x", "--id", f"{new_id}-open", "--no-follow")
    perdure("run", "reader", "x", "--id", f"{new_id}-done")
    until(lambda: offered(perdure, tmp_path, "approve", new_id) == [f"{new_id}-open"])
    assert sorted(offered(perdure, tmp_path, "show", new_id)) == [f"{new_id}-done", f"{new_id}-open"]
    assert offered(perdure, tmp_path, "say", new_id) == [f"{new_id}-open"]
    assert offered(perdure, tmp_path, "approve", f"{new_id}-open", "") == ["c1"]
    assert "payer" in (agents := offered(perdure, tmp_path, "list", "--agent", "pa"))
    assert all(name.startswith("pa") for name in agents)
    perdure("cancel", f"{new_id}-open")


def test_silence_without_a_server(bare: CommandLine, tmp_path: Path) -> None:
    """Nothing is offered and nothing is printed; neither is for a broken profile."""
    assert offered(bare, tmp_path, "show", "x") == []
    (tmp_path / "broken.toml").write_text("[")
    broken = {"TEMPORAL_CONFIG_FILE": str(tmp_path / "broken.toml"), "TEMPORAL_ADDRESS": ""}
    assert offered(bare, tmp_path, "approve", "x", "", **broken) == []
