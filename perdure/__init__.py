"""LLM agents as durable workflows on Temporal."""

from __future__ import annotations

from perdure.agent import Agent
from perdure.approval import Approval
from perdure.errors import (
    ConfigError,
    InvalidInput,
    PerdureError,
    ProviderError,
    RetryTool,
    RunCancelled,
    RunFailed,
    Unreachable,
)
from perdure.limits import Limits
from perdure.model import Model, Price
from perdure.outcomes import Outcome, RunResult
from perdure.policy import allow, ask, deny
from perdure.strategies import ToolLoop
from perdure.tools import Tool, ToolContext, ToolDefaults, tool

__all__ = [
    "Agent",
    "Approval",
    "ConfigError",
    "InvalidInput",
    "Limits",
    "Model",
    "Outcome",
    "PerdureError",
    "Price",
    "ProviderError",
    "RetryTool",
    "RunCancelled",
    "RunFailed",
    "RunResult",
    "Tool",
    "ToolContext",
    "ToolDefaults",
    "ToolLoop",
    "Unreachable",
    "allow",
    "ask",
    "deny",
    "tool",
]
