"""Tools: functions that a model may call, with what must be known before one runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, overload

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, model_validator

from perdure.approval import Approval, Names
from perdure.durations import Duration
from perdure.errors import ConfigError
from perdure.schema import FunctionSchema, describe
from perdure.settings import Settings, must

if TYPE_CHECKING:
    from perdure.agent import Agent

Effect = Literal["read", "idempotent", "write", "dangerous"]
OnUnknown = Literal["tell", "ask", "fail"]

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
QUICK_LIMIT = timedelta(seconds=2)
REPEATABLE: frozenset[Effect] = frozenset({"read", "idempotent"})
"""Effects that may run again after a lost worker."""
_QUEUE = re.compile(r"[^\s\x00-\x1f\x7f]+")

ApprovalOption = Annotated[
    Approval | bool,
    BeforeValidator(must(lambda value: isinstance(value, Approval | bool), "be True, False or Approval(...)")),
]
QueueName = Annotated[
    str,
    Field(min_length=1, max_length=200),
    AfterValidator(must(_QUEUE.fullmatch, "be a task queue's name, without spaces and control characters")),
]
ToolName = Annotated[str, AfterValidator(must(TOOL_NAME.fullmatch, "be 1 to 64 of A-Z, a-z, 0-9, _ and -"))]


class ToolOptions(Settings):
    """What can be said of a tool; None means what its effect or its agent's defaults say."""

    effect: Effect | None = None
    approval: ApprovalOption | None = None
    timeout: Duration | None = None
    quick: StrictBool | None = None
    attempts: StrictInt | None = Field(None, ge=1, le=10)
    heartbeat: Duration | None = None
    queue: QueueName | None = None
    final: StrictBool | None = None
    on_unknown: OnUnknown | None = None
    untrusted: StrictBool | None = None
    egress: StrictBool | None = None
    permissions: Names | None = None
    max_result_chars: StrictInt | None = Field(None, ge=100)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.heartbeat and self.timeout and self.heartbeat >= self.timeout:
            raise ValueError("heartbeat: must be shorter than the timeout")
        if self.on_unknown == "ask" and self.effect in REPEATABLE:
            raise ValueError(
                f"on_unknown: 'ask' contradicts effect={self.effect!r}, which simply runs again; remove one of them"
            )
        return self

    def over(self, defaults: ToolOptions | None) -> ToolOptions:
        """These options, filled up from `defaults`."""
        if defaults is None:
            return self
        # Each was checked by itself; a default that does not suit one tool is no contradiction.
        return defaults.model_copy(update={name: value for name, value in self if value is not None})


class ToolDefaults(ToolOptions):
    """Options for all tools of an agent or worker; what a tool says itself wins."""


class ToolSpec(Settings):
    """Everything about a tool that is data; this is what a run freezes."""

    name: ToolName
    description: str = ""
    parameters: dict[str, Any]
    """JSON Schema of the arguments: a closed object."""
    effect: Effect = "write"
    approval: Approval | None = None
    timeout: Duration = timedelta(seconds=60)
    quick: bool = False
    attempts: int = 1
    heartbeat: Duration = timedelta(seconds=20)
    queue: str | None = None
    final: bool = False
    on_unknown: OnUnknown = "tell"
    untrusted: bool = False
    egress: bool = False
    permissions: tuple[str, ...] = ()
    max_result_chars: int = 50_000
    agent: str | None = None
    """Set where the tool is another agent, run as a child."""
    asks: bool = False
    """A call is a question to a person; nothing runs."""

    @property
    def definition(self) -> dict[str, Any]:
        """What an approval is bound to besides name and arguments."""
        return {"description": self.description, "parameters": self.parameters, "effect": self.effect}

    @model_validator(mode="after")
    def _check(self) -> ToolSpec:
        if self.effect not in REPEATABLE and self.attempts > 1:
            raise ValueError(f"attempts={self.attempts} contradicts effect={self.effect!r}: it never runs twice")
        if self.quick and (self.effect != "read" or self.timeout > QUICK_LIMIT or self.approval):
            raise ValueError("quick=True needs effect='read', a timeout of at most 2s and no approval")
        if self.quick and self.queue:
            raise ValueError("quick=True runs inside the worker of the run, so queue= cannot be used with it")
        if self.approval and self.approval.on_timeout == "approve" and self.effect == "dangerous":
            raise ValueError("approval: on_timeout='approve' is refused for effect='dangerous'")
        return self


def settle_options(options: ToolOptions) -> dict[str, Any]:
    """The fields of a ToolSpec that follow from options and effect."""
    given = {name: value for name, value in options if value is not None}
    effect: Effect = given.setdefault("effect", "write")
    given.setdefault("attempts", 3 if effect in REPEATABLE else 1)
    given.setdefault("on_unknown", "ask" if effect == "dangerous" else "tell")
    if given.get("quick"):
        given.setdefault("timeout", QUICK_LIMIT)
    if given.get("approval") is True or (effect == "dangerous" and "approval" not in given):
        given["approval"] = Approval()
    elif given.get("approval") is False:
        if effect == "dangerous":
            raise ConfigError("approval=False contradicts effect='dangerous': use effect='write' without approval")
        del given["approval"]
    return given


class Beat(Protocol):
    """Tells Temporal that a long tool is alive, with optional details for its next attempt."""

    def __call__(self, *details: Any) -> None:
        """Beat once."""
        ...


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know of the run that calls it. A parameter of this type is injected and hidden from the model."""

    run_id: str
    """The workflow id."""
    call_id: str
    tool: str
    idempotency_key: str
    """The same in every attempt of this call, after continue-as-new and reset; give it to the system you change."""
    attempt: int = 1
    agent: str = ""
    tenant: str | None = None
    user: str | None = None
    data: Any = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    state: Any = None
    """What the agents file's `lifespan` yields."""
    heartbeat: Beat = lambda *details: None
    heartbeat_details: tuple[Any, ...] = ()
    """What the last attempt reported before it was lost."""


class Tool:
    """A function with its ToolSpec; calling it calls the function."""

    def __init__(
        self,
        function: Callable[..., Any] | None,
        schema: FunctionSchema | None,
        options: ToolOptions,
        *,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        agent: Agent | None = None,
        asks: bool = False,
    ) -> None:
        self.function = function
        self.schema = schema
        self.options = options
        self.agent = agent
        self.asks = asks
        self._base = {"name": name, "description": description, "parameters": dict(parameters)}
        self.spec = self.with_defaults(None)

    def with_defaults(self, defaults: ToolOptions | None) -> ToolSpec:
        """The spec that this tool has in an agent with these defaults; raises ConfigError where they contradict."""
        options = self.options.over(defaults)
        try:
            extra: dict[str, Any] = {"agent": self.agent.name} if self.agent else {"asks": True} if self.asks else {}
            return ToolSpec(**self._base, **settle_options(options), **extra)
        except ConfigError as error:
            raise ConfigError(f"tool {self._base['name']!r}: {str(error).removeprefix('ToolSpec: ')}") from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, outside any run."""
        if self.function is None:
            what = "a question to a person" if self.asks else "an agent"
            raise ConfigError(f"tool {self.spec.name!r} is {what}; it only runs inside a run")
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = ...,
    effect: Effect | None = ...,
    approval: Approval | bool | None = ...,
    timeout: Any = ...,
    quick: bool | None = ...,
    attempts: int | None = ...,
    heartbeat: Any = ...,
    queue: str | None = ...,
    final: bool | None = ...,
    on_unknown: OnUnknown | None = ...,
    untrusted: bool | None = ...,
    egress: bool | None = ...,
    permissions: tuple[str, ...] | list[str] | None = ...,
    max_result_chars: int | None = ...,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    **options: Any,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function; bare or with options (see the README's table). Raises ConfigError."""

    def build(target: Callable[..., Any]) -> Tool:
        if isinstance(target, Tool):
            raise ConfigError(f"tool {target.spec.name!r}: it is a tool already; remove the second @tool")
        label = getattr(target, "__name__", repr(target)) if name is None else name
        try:
            settled = ToolOptions(**options)
        except ConfigError as error:
            raise ConfigError(f"tool {label!r}: {str(error).removeprefix('ToolOptions: ')}") from None
        schema = describe(target, context_type=ToolContext)
        return Tool(
            target,
            schema,
            settled,
            name=label,
            description=schema.description,
            parameters=schema.parameters,
        )

    return build if function is None else build(function)


QUESTION_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "description": "The question, with everything the person needs to know."},
        "options": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The only possible answers, where there are few.",
        },
    },
    "required": ["question"],
    "additionalProperties": False,
}
"""Arguments of a tool that asks a person."""


def human(name: str = "ask_human", *, timeout: Any = "24h", description: str = "") -> Tool:
    """A tool with which the model asks a person and waits for the answer, at most `timeout`. Raises ConfigError."""
    try:
        options = ToolOptions(effect="read", timeout=timeout, attempts=1)
    except ConfigError as error:
        raise ConfigError(f"tool {name!r}: {str(error).removeprefix('ToolOptions: ')}") from None
    text = description or "Ask a person and wait for the answer. Use it where only a person can know or decide."
    return Tool(None, None, options, name=name, description=text, parameters=QUESTION_PARAMETERS, asks=True)


ask_human = human()
"""Asks a person; waits for the answer for a day."""
