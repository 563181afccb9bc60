"""What a strategy may ask of the run it drives. Strategies see this and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from perdure.agent import AgentSpec
from perdure.messages import AssistantMessage, CallPart, Message, ToolMessage, text_of


@dataclass(frozen=True)
class Reply:
    """One reply of a model, recorded."""

    message: AssistantMessage
    finish: Literal["stop", "length", "filtered", "refused", "paused"] = "stop"
    announced: bool = False
    """The provider said that it stopped for tool calls."""
    structured: Any = None
    """The answer as an object, where an output schema was asked for and it fits."""
    misfit: str | None = None
    """Why the answer does not fit the output schema."""

    @property
    def text(self) -> str:
        """The text of the answer."""
        return text_of(self.message)

    @property
    def calls(self) -> tuple[CallPart, ...]:
        """The tool calls in order."""
        return self.message.calls


@dataclass(frozen=True)
class Ran:
    """What became of one tool call."""

    message: ToolMessage
    final: bool = False
    """It was a call of a `final` tool that succeeded: the run ends with it."""
    structured: Any = None


class Runtime(Protocol):
    """A run, seen by its strategy: models, tools, the conversation, and nothing of how it is made durable."""

    @property
    def spec(self) -> AgentSpec:
        """The agent, frozen at the start of the run."""
        ...

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far; never edited."""
        ...

    async def model(self, *, tool_choice: str = "auto") -> Reply:
        """Ask the model for the next message and add it to the conversation. Raises where a limit is reached."""
        ...

    async def tools(self, calls: Sequence[CallPart], *, max_repeats: int = 3) -> Sequence[Ran]:
        """Run calls and add their results to the conversation in call order."""
        ...

    def open_calls(self) -> Sequence[CallPart]:
        """Calls of the last reply that have no result yet."""
        ...

    def take_said(self) -> bool:
        """Add what the user has said meanwhile to the conversation; False where there is nothing."""
        ...

    def tell(self, text: str, kind: str = "correction") -> None:
        """Add a message from the run itself to the conversation: what to correct."""
        ...

    async def verify(self, output: str, structured: Any) -> str | None:
        """Let the agent's own check judge the answer: None, or what to fix."""
        ...

    def count(self, name: str) -> int:
        """Add one to a counter that lives as long as the run, and return it."""
        ...

    def idle(self, words: str = "", done: Sequence[tuple[CallPart, Ran]] = ()) -> int:
        """Take note of what a reply's calls brought, or of its words where it has none.

        Returns how many replies in a row brought nothing new within this turn of the user.
        """
        ...

    def now(self) -> datetime:
        """The run's time."""
        ...
