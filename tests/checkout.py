"""The files of this checkout, for tests that read them: with git or without."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("perdure", "workflows", "activities", "providers")
"""What the wheel carries, besides worker.py."""

_MADE = {"dist", "build", "node_modules", "__pycache__"}


def files(*suffixes: str, below: Path = ROOT) -> list[Path]:
    """Every file that belongs to the repository and ends so; hidden folders other than .ci and .github are left out."""
    return sorted(p for p in below.rglob("*") if p.is_file() and p.suffix in suffixes and _ours(p.relative_to(ROOT)))


def settings() -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _ours(path: Path) -> bool:
    folders = path.parts[:-1]
    return not any(
        name in _MADE or name.endswith(".egg-info") or (name.startswith(".") and name not in {".ci", ".github"})
        for name in folders
    )
