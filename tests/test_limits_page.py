"""The page of limits says what the code says."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from activities import (
    beats,
    breakers,
    checks,
    exchange,
    http,
    model,
    policies,
    rendering,
    replies,
    resolve,
    shutdown,
    transcript,
)
from perdure import (
    Agent,
    Approval,
    Limits,
    client,
    contracts,
    embedded,
    excerpt,
    limits,
    media,
    repetition,
    run_input,
    shared_store,
    tools,
)
from perdure import model as models
from perdure.durations import parse_duration
from perdure.strategies import tool_loop
from perdure.strategies.parameters import ToolLoop
from perdure.testing import scripted
from perdure.worker_settings import WorkerSettings
from providers import retry_after, sse
from tests.checkout import ROOT
from workflows import calls, inbox, options, runtime, state, views

PAGE = (ROOT / "docs" / "limits.md").read_text()
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
ROWS = {cells[0].strip("`"): cells[1:] for cells in CELLS}

MODULES = (
    beats, breakers, calls, checks, client, contracts, exchange, excerpt, http, inbox, limits, media, model, models,
    options, policies, rendering, repetition, replies, resolve, retry_after, run_input, runtime, shared_store, shutdown,
    sse, state, tool_loop, transcript, views,
)  # fmt: skip

CONSTANTS = [name for name in ROWS if re.fullmatch(r"[A-Z_]+", name) and not name.startswith("PERDURE_")]

SECONDS = {"POLICY_SECONDS", "VERIFY_SECONDS"}


def shown(value: Any) -> str:
    """A number or duration as the page writes it."""
    if isinstance(value, timedelta):
        seconds = int(value.total_seconds())
        sizes = ((86_400, "d"), (3_600, "h"), (60, "m"))
        if seconds in {86_400, 90_000}:
            return f"{seconds // 3_600}h"
        return next((f"{seconds // size}{unit}" for size, unit in sizes if seconds % size == 0), f"{seconds}s")
    for size, unit in ((1024 * 1024, "MiB"), (1024, "KiB")):
        if value >= size and value % size == 0 and value % 1_000:
            return f"{value // size} {unit}"
    return f"{int(value):,}"


def values_of(name: str) -> set[Any]:
    """What a constant is in the code; the client's own SIDE_BY_SIDE is about queries."""
    found = {getattr(module, name) for module in MODULES if hasattr(module, name) and module is not client}
    return found or {getattr(client, name)}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name: str) -> None:
    """A constant of the page is in the code once, with the number that the page gives."""
    [value] = values_of(name)
    value = timedelta(seconds=value) if name in SECONDS else value
    assert re.match(rf"{re.escape(shown(value))}\b", ROWS[name][0]), (ROWS[name], value)


AGENT = Agent("a", scripted()).spec()
TOOL = tools.ToolSpec.model_fields
LOOP = ToolLoop()
MODEL = options.MODEL

GIVEN: dict[str, Any] = {
    "steps": Limits().steps,
    "tool_calls": Limits().tool_calls,
    "tokens": Limits().tokens,
    "deadline": Limits().deadline,
    "max_repeats": LOOP.max_repeats,
    "max_idle": LOOP.max_idle,
    "max_nudges": LOOP.max_nudges,
    "max_cut": LOOP.max_cut,
    "corrections": AGENT.corrections,
    "timeout": TOOL["timeout"].default,
    "quick` timeout": tools.QUICK_LIMIT,
    "heartbeat": MODEL["heartbeat_timeout"],
    "max_result_chars": TOOL["max_result_chars"].default,
    "approval `timeout": Approval().timeout,
    "one attempt": MODEL["start_to_close_timeout"],
    "attempts": MODEL["retry_policy"].maximum_attempts,
    "silence before the first data": WorkerSettings().idle_first,
    "silence between data": WorkerSettings().idle_between,
    "PERDURE_MAX_ACTIVITIES": WorkerSettings().max_activities,
    "PERDURE_MAX_CACHED_RUNS": WorkerSettings().max_cached_runs,
}


@pytest.mark.parametrize("name", GIVEN)
def test_defaults(name: str) -> None:
    """What can be set, and what has no name, has the default that the page gives."""
    cells = [cells[1] for cells in CELLS if cells[0].strip("`") == name]
    assert shown(GIVEN[name]) in cells


def test_tools() -> None:
    """Heartbeat and attempts of tools are what the table of tools says."""
    cells = {
        cells[0].strip("`"): cells[1:3]
        for cells in CELLS
        if len(cells) == 4 and cells[0] in {"`attempts`", "`heartbeat`"}
    }
    assert cells["heartbeat"][0] == shown(TOOL["heartbeat"].default)
    repeated = tools.settle_options(tools.ToolOptions(effect="read"))["attempts"]
    assert cells["attempts"][0].startswith(f"{repeated} for `read`")


@pytest.mark.parametrize("name", ["steps", "tool_calls", "tokens", "cost_usd", "deadline"])
def test_most(name: str) -> None:
    """Limits take what the page gives as their most, and not more."""
    given = ROWS[name][1].replace(",", "")
    most: Any = parse_duration(given) if name == "deadline" else int(given)
    Limits(**{name: most})
    with pytest.raises(ValueError, match=name):
        Limits(**{name: most * 2})


def test_every_limit_of_a_run_has_a_row() -> None:
    """The first table has all of them, and the loop's has all of its."""
    assert set(Limits.model_fields) | set(ToolLoop.model_fields) <= set(ROWS)


def test_retention() -> None:
    """The embedded server keeps closed runs as long as the page says."""
    assert ROWS["retention of closed runs"][0].startswith(embedded.RETENTION.replace("d", " days"))
