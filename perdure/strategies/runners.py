"""The functions of the strategies, by the name of their parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.outcomes import Ending
from perdure.runtime import Runtime
from perdure.strategies import StrategySpec
from perdure.strategies.tool_loop import tool_loop

RUNNERS: dict[str, Callable[[Runtime, Any], Awaitable[Ending]]] = {"ToolLoop": tool_loop}


async def run_strategy(rt: Runtime, spec: StrategySpec) -> Ending:
    """Run a strategy to its end."""
    return await RUNNERS[spec.name](rt, spec.parameters())
