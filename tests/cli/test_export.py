"""`perdure export`: a history that holds all that a replay elsewhere needs."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory

from tests.cli.command_line import CommandLine

pytestmark = pytest.mark.slow


def test_a_run_is_exported(perdure: CommandLine, new_id: str, tmp_path: Path) -> None:
    """Standard output and --output give the same history, and a warning says what it contains."""
    perdure("run", "reader", "Look around.", "--id", new_id)
    done = perdure("export", new_id)
    assert done.stderr == (
        "perdure: the history contains the conversation, with all arguments and results of tools: look before you "
        "share it\n"
    )
    history = WorkflowHistory.from_json(new_id, done.stdout)
    assert history.events[0].workflow_execution_started_event_attributes.workflow_id == new_id
    file = tmp_path / "run.json"
    told = perdure("export", new_id, "--output", str(file))
    assert told.stdout == ""
    assert f"the history in {file} contains the conversation" in told.stderr
    assert json.loads(file.read_text()) == json.loads(done.stdout)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    run_id = perdure.json("replay", new_id)[0]["run_id"]
    assert perdure("export", f"{new_id}:{run_id}").stdout == done.stdout


def test_large_values_are_in_it(perdure: CommandLine, new_id: str, tmp_path: Path) -> None:
    """What lies in the store of the workers is put in its place; without the store that is said."""
    perdure("run", "reader", "x" * 100_000, "--id", new_id)
    text = perdure("export", new_id).stdout
    assert "ExternalStorageReference" not in text
    history = WorkflowHistory.from_json(new_id, text)
    assert any(b"x" * 100_000 in event.SerializeToString() for event in history.events[1:])
    (tmp_path / "empty" / "blobs").mkdir(parents=True)
    done = perdure("export", new_id, code=1, PERDURE_DATA_DIR=str(tmp_path / "empty"))
    assert f"run '{new_id}': sha256:" in done.stderr
    assert "is not in" in done.stderr


def test_what_cannot_be_exported(perdure: CommandLine, bare: CommandLine, new_id: str) -> None:
    """An unknown run, no server, and a file that cannot be written are one line each."""
    assert f"no run '{new_id}'" in perdure("export", new_id, code=1).stderr
    assert "no Temporal server answers" in bare("export", new_id, code=3).stderr
    perdure("run", "reader", "go", "--id", new_id)
    done = perdure("export", new_id, "--output", "nix/run.json", code=2)
    assert done.stderr == "perdure: --output: nix/run.json cannot be written: No such file or directory\n"
