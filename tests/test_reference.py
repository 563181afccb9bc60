"""The API reference is what the code says."""

from __future__ import annotations

import runpy
from itertools import pairwise
from pathlib import Path

import perdure
from tests.checkout import ROOT

SCRIPT = ROOT / "docs" / "reference.py"


def test_the_reference_is_up_to_date() -> None:
    """`make docs` would write the page that is there."""
    made: str = runpy.run_path(str(SCRIPT))["page"]()
    assert Path(ROOT / "docs" / "reference.md").read_text() == made, "run `make docs`"


def test_the_table_of_providers_is_up_to_date() -> None:
    """`make docs` would write the README that is there."""
    made = runpy.run_path(str(ROOT / "docs" / "support.py"))
    assert made["readme"]() == (ROOT / "README.md").read_text(), "run `make docs`"
    assert made["table"]() in made["readme"]()


def test_every_public_name_is_in_the_reference() -> None:
    """What `perdure` exports is described."""
    page = (ROOT / "docs" / "reference.md").read_text()
    missing = [name for name in perdure.__all__ if f"### perdure.{name}\n" not in page]
    assert missing == []


def test_everything_described_has_a_text() -> None:
    """No heading stands alone."""
    lines = [line for line in (ROOT / "docs" / "reference.md").read_text().splitlines() if line]
    alone = [line for line, after in pairwise(lines) if line[:4] == after[:4] == "####"]
    assert alone == []
