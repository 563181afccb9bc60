"""Golden histories: runs recorded with earlier code must replay with this code, whatever the hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replay.record import KNOWN

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))
ROOT = Path(__file__).parent.parent.parent


def replay(*arguments: str, seed: int) -> dict[str, str | None]:
    """Replay in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.replay.replay", *arguments, *map(str, HISTORIES)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_history_replays(seed: int) -> None:
    """In a fresh process each history gives exactly the recorded commands."""
    found = replay(seed=seed)
    assert {name: error for name, error in found.items() if error} == {}
    assert len(found) == len(HISTORIES)


def test_another_order_of_commands_is_found_out() -> None:
    """A workflow that does something else first cannot replay a single history."""
    found = replay("--reordered", seed=0)
    assert [name for name, error in found.items() if error is None] == []
    assert all("ondeterminism" in str(error) for error in found.values())


def test_every_feature_has_a_history() -> None:
    """No scenario is without its recording, and no recording without its scenario."""
    recorded = {path.stem.rstrip("0123456789").removesuffix("_") for path in HISTORIES}
    assert recorded == KNOWN


def test_histories_are_small_and_tell_no_secrets() -> None:
    """They hold no name of the machine that recorded them."""
    assert sum(path.stat().st_size for path in HISTORIES) < 2_500_000
    for path in HISTORIES:
        identities = {
            value
            for event in json.loads(path.read_text())["events"]
            for attributes in event.values()
            if isinstance(attributes, dict) and (value := attributes.get("identity"))
        }
        assert {i for i in identities if not i.startswith(("recorder", "history-service", "temporal"))} == set()
