"""The calls of one reply, planned: what was decided about each before anything runs, and how far it has come."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from perdure.approval import Approval
from perdure.canonical import digest
from perdure.messages import CallPart, ToolMessage, Whole
from perdure.tools import ToolSpec


class Planned(BaseModel):
    """One call of the last reply; carried through continue-as-new while people are waited for."""

    call: CallPart
    identity: str = ""
    same: int = 0
    """How many identical ones came before it in this run."""
    refusal: str | None = None
    """Why it does not run."""
    over: bool = False
    """It does not run because the limit on tool calls is reached."""
    approval: Approval | None = None
    why: str | None = None
    """Why a person is asked, where the tool itself does not."""
    edited: bool = False
    """The approver has changed its arguments."""
    approved: bool = False
    phase: Literal["planned", "running", "unknown"] = "planned"
    """`running`: handed to a worker; `unknown`: a person is asked what became of it."""
    round: int = 0
    """How often it was scheduled because a person said so."""
    message: ToolMessage | None = None
    """Its result."""
    final: bool = False
    structured: Any = None


def identity(call: CallPart) -> str:
    """The same for the same tool and arguments."""
    return digest({"tool": call.tool, **_content(call.arguments, call.whole)})[7:23]


def binding(tool: str, arguments: dict[str, Any], spec: ToolSpec, whole: Whole | None = None) -> str:
    """The digest that an approval is bound to: tool name, arguments and definition."""
    return digest({"tool": tool, **_content(arguments, whole), "definition": spec.definition})


def _content(arguments: dict[str, Any], whole: Whole | None) -> dict[str, Any]:
    """The arguments, or the digest of them where they are not here; the two cannot be mistaken for each other."""
    return {"arguments": arguments} if whole is None else {"whole": whole.digest}
