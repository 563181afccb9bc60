"""What a worker takes from agents files beside their agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.registry import Registry, load
from perdure import ConfigError

FILE = """
from perdure import Agent, Approval, ToolDefaults, tool

{defaults}

@tool(effect="write")
def pay() -> None: ...

@tool(effect="write", timeout="5m")
def send() -> None: ...

agent = Agent("{name}", "scripted", tools=[pay, send], tool_defaults=ToolDefaults(max_result_chars=100))
"""


def load_files(folder: Path, *defaults: str) -> Registry:
    """A registry with one file for each set of defaults, or for none where it is empty."""
    registry, files = Registry(), []
    for number, given in enumerate(defaults):
        line = f"tool_defaults = ToolDefaults({given})" if given else ""
        text = FILE.format(defaults=line, name=f"a{number}")
        text = text.replace("pay", f"pay{number}").replace("send", f"send{number}")
        files.append(folder / f"agents_{folder.name}_{number}.py")
        files[-1].write_text(text)
    load([str(file) for file in files], registry)
    return registry


def test_defaults_of_a_worker(tmp_path: Path) -> None:
    """They hold for every tool of every file that says nothing else, below its agent's and its own."""
    registry = load_files(tmp_path, 'timeout="7m", approval=Approval(timeout="1h")', "")
    first = {spec.name: spec for spec in registry.agents["a0"].spec(registry.defaults).tools}
    second = {spec.name: spec for spec in registry.agents["a1"].spec(registry.defaults).tools}
    seconds = [spec.timeout.total_seconds() for spec in (first["pay0"], first["send0"], second["pay1"])]
    assert seconds == [420, 300, 420]
    assert second["pay1"].approval is not None
    assert second["pay1"].max_result_chars == 100


@pytest.mark.parametrize(
    ("defaults", "why"),
    [
        (('timeout="7m"', 'timeout="8m"'), "tool_defaults: another file gives different ones"),
        (('approval=Approval(approvers=["@finance"])',), "groups: pay0 names 'finance', which is not there"),
    ],
)
def test_defaults_that_cannot_be(tmp_path: Path, defaults: tuple[str, ...], why: str) -> None:
    """The file is named, and why."""
    with pytest.raises(ConfigError, match=rf"agents_\S+\.py: .*{why}"):
        load_files(tmp_path, *defaults)
