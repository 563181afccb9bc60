"""LLM agents as durable workflows on Temporal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agent import Agent
from perdure.approval import Approval, Escalation
from perdure.errors import (
    AlreadyStarted,
    ConfigError,
    InvalidInput,
    MessageRefused,
    NoAnswer,
    NoSuchRun,
    PerdureError,
    ProviderError,
    RetryTool,
    RunCancelled,
    RunFailed,
    Unreachable,
)
from perdure.limits import Limits
from perdure.media import Document, Image
from perdure.model import Model, Price
from perdure.model_call import ModelReply, ModelRequest
from perdure.notification import Notification
from perdure.outcomes import Outcome, RunResult
from perdure.own_providers import provider
from perdure.policy import allow, ask, deny
from perdure.routing import Router, RoutingRule
from perdure.status import RunStatus, StreamEvent
from perdure.strategies import ToolLoop
from perdure.tools import Tool, ToolContext, ToolDefaults, ask_human, human, tool

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.handle import Handle
    from perdure.local_process import local

__all__ = [
    "Agent",
    "AlreadyStarted",
    "Approval",
    "Client",
    "ConfigError",
    "Document",
    "Escalation",
    "Handle",
    "Image",
    "InvalidInput",
    "Limits",
    "MessageRefused",
    "Model",
    "ModelReply",
    "ModelRequest",
    "NoAnswer",
    "NoSuchRun",
    "Notification",
    "Outcome",
    "PerdureError",
    "Price",
    "ProviderError",
    "RetryTool",
    "Router",
    "RoutingRule",
    "RunCancelled",
    "RunFailed",
    "RunResult",
    "RunStatus",
    "StreamEvent",
    "Tool",
    "ToolContext",
    "ToolDefaults",
    "ToolLoop",
    "Unreachable",
    "allow",
    "ask",
    "ask_human",
    "deny",
    "human",
    "local",
    "provider",
    "tool",
]

_LATER = {"Client": "perdure.client", "Handle": "perdure.handle", "local": "perdure.local_process"}
"""Names whose modules talk to the outside: loaded at first use, for workflow code imports this package too."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
