"""For tests: scripted models that need no network, and a runtime that drives a strategy without Temporal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from inspect import isawaitable
from typing import Any, Literal, get_args

from perdure.agent import AgentSpec
from perdure.errors import ConfigError, ErrorKind
from perdure.limits import LimitReached
from perdure.messages import AssistantMessage, CallPart, Message, TextPart, ToolMessage, UserMessage, text, text_of
from perdure.model import Model, Price
from perdure.repetition import Repetition
from perdure.runtime import Ran, Reply

Step = dict[str, Any]
"""One reply of a script, as the provider `scripted` and FakeRuntime take it; further fields may be added to it."""

STEP = "a reply of reply(...), calls(...) or failure(...)"

Finish = Literal["stop", "length", "filtered", "refused", "paused"]


def reply(words: str = "", *, finish: Finish = "stop") -> Step:
    """A reply in words. They may hold `{{user}}`, `{{last_tool_text}}` and `{{tool:c2.field}}`. Raises ConfigError."""
    _require(isinstance(words, str), "reply", words, "a text")
    _require(finish in get_args(Finish), "reply: finish", finish, f"one of {', '.join(get_args(Finish))}")
    return {"text": words} if finish == "stop" else {"text": words, "finish": finish}


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    """One tool call, for `calls`. Raises ConfigError."""
    _require(isinstance(tool, str) and bool(tool), "call", tool, "the name of a tool")
    return {"tool": tool, "arguments": arguments}


def calls(*what: str | Mapping[str, Any], **arguments: Any) -> Step:
    """A reply with one call, `calls("search", q="x")`, or with several, `calls(call("search", q="x"), call("now"))`.

    Raises ConfigError for what is no call, TypeError for arguments beside several.
    """
    if arguments and not (len(what) == 1 and isinstance(what[0], str)):
        raise TypeError("arguments go with the name of one tool; for several calls use call(...)")
    for item in what:
        named = isinstance(item, str) or (isinstance(item, Mapping) and "tool" in item)
        _require(named, "calls", item, "the name of a tool, or call(...)")
    return {"calls": [call(item, **arguments) if isinstance(item, str) else dict(item) for item in what]}


def failure(
    kind: ErrorKind | str, message: str = "the script says so", *, times: int | None = None, then: Step | None = None
) -> Step:
    """A failure of the provider in every attempt, or in the first `times` and after them the reply `then`.

    Raises ConfigError.
    """
    kinds = [known.value for known in ErrorKind]
    _require(kind in kinds, "failure", kind, f"one of {', '.join(kinds)}")
    _require(isinstance(message, str), "failure: message", message, "a text")
    _require(times is None or (type(times) is int and times > 0), "failure: times", times, "a number from 1 on")
    _require(then is None or isinstance(then, Mapping), "failure: then", then, STEP)
    return {**(then or {}), "error": {"kind": str(kind), "message": message, "times": times}}


def scripted(*steps: Step, repeat: bool = False, price: Price | None = None, name: str = "") -> Model:
    """A model that gives these replies one after the other; with `repeat` the last one for ever. Raises ConfigError."""
    for step in steps:
        _require(isinstance(step, Mapping), "scripted", step, STEP)
    _require(bool(steps) or not repeat, "scripted: repeat", repeat, "False without a reply")
    script = [dict(step) for step in steps]
    if repeat:
        script[-1]["repeat"] = True
    return Model(provider="scripted", name=name, params={"script": script}, price=price)


def _require(holds: bool, what: str, given: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"perdure.testing: {what}: must be {wanted}, not {given!r:.80}")


ToolFunction = Callable[..., str | Ran | Awaitable[str | Ran]]


class FakeRuntime:
    """A Runtime in memory: replies come from `replies`, tools are plain functions, nothing is durable.

    `replies` are steps or Reply objects (for what no step can say: `announced`, `misfit`, `structured`); `tools` give
    a text or a Ran, and what they raise is an error for the model; `verdicts` are what `verify` says, then None. Steps
    and tool calls beyond the spec's limits raise LimitReached; a reply that nobody wrote raises AssertionError.
    """

    def __init__(
        self,
        *replies: Step | Reply,
        spec: AgentSpec | None = None,
        tools: Mapping[str, ToolFunction] | None = None,
        verdicts: Iterable[str | None] = (),
        messages: Sequence[Message] = (),
    ) -> None:
        for step in replies:
            _require(isinstance(step, Mapping | Reply), "FakeRuntime", step, f"{STEP}, or a Reply")
        self._spec = spec or AgentSpec(name="fake", models=(scripted(),))
        self._replies = list(replies)
        self._tools = dict(tools or {})
        self._verdicts = list(verdicts)
        self._messages: list[Message] = list(messages) or [UserMessage(role="user", parts=text("Go."), id="m0")]
        self._said: list[str] = []
        self._counters: dict[str, int] = {}
        self._repetition = Repetition()
        self._calls = 0
        self._clock = datetime(2025, 1, 1, tzinfo=UTC)
        self.choices: list[str] = []
        """The `tool_choice` of every model call."""
        self.told: list[tuple[str, str]] = []
        """Corrections, each with its kind."""
        self.verified: list[tuple[str, Any]] = []
        """Answers that were verified: text and object."""

    @property
    def spec(self) -> AgentSpec:
        """The agent."""
        return self._spec

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far."""
        return self._messages

    @property
    def conversation(self) -> list[tuple[str, str]]:
        """The conversation as pairs of role and text."""
        return [(message.role, text_of(message)) for message in self._messages]

    async def model(self, *, tool_choice: str = "auto") -> Reply:
        """The next reply of the script."""
        if len(self.choices) >= self._spec.limits.steps:
            raise LimitReached("max_steps")
        if not self._replies:
            raise AssertionError(f"the strategy asked for reply {len(self.choices) + 1}, which nobody wrote")
        self.choices.append(tool_choice)
        step = self._replies.pop(0)
        made = step if isinstance(step, Reply) else self._reply(step)
        self._messages.append(made.message)
        return made

    async def tools(self, calls: Sequence[CallPart], *, max_repeats: int = 3) -> Sequence[Ran]:
        """Run calls one after the other."""
        ran: list[Ran] = []
        for part in calls:
            if self._calls >= self._spec.limits.tool_calls:
                raise LimitReached("max_tool_calls")
            self._calls += 1
            ran.append(await self._run(part))
            self._messages.append(ran[-1].message)
        return ran

    def open_calls(self) -> Sequence[CallPart]:
        """Calls of the last reply without a result."""
        answered = {message.call for message in self._messages if isinstance(message, ToolMessage)}
        last = next((m for m in reversed(self._messages) if not isinstance(m, ToolMessage)), None)
        return [c for c in last.calls if c.id not in answered] if isinstance(last, AssistantMessage) else []

    def say(self, words: str) -> None:
        """Say something as the user, also from inside a tool."""
        self._said.append(words)

    def take_said(self) -> bool:
        """Add what the user has said to the conversation."""
        said, self._said = self._said, []
        self._messages += [self._user(words) for words in said]
        if said:
            self._repetition.clear()
        return bool(said)

    def tell(self, text: str, kind: str = "correction") -> None:
        """Add a correction to the conversation."""
        self.told.append((text, kind))
        self._messages.append(self._user(text))

    async def verify(self, output: str, structured: Any) -> str | None:
        """The next verdict, None where there is none."""
        self.verified.append((output, structured))
        return self._verdicts.pop(0) if self._verdicts else None

    def count(self, name: str) -> int:
        """Add one to a counter and return it."""
        self._counters[name] = self._counters.get(name, 0) + 1
        return self._counters[name]

    def idle(self, words: str = "", done: Sequence[tuple[CallPart, Ran]] = ()) -> int:
        """How many replies in a row brought nothing new."""
        return self._repetition.step(self._spec, words, [(part, ran.message) for part, ran in done])

    def now(self) -> datetime:
        """A clock that goes on a second with every look at it."""
        self._clock += timedelta(seconds=1)
        return self._clock

    def _reply(self, step: Step) -> Reply:
        first = 1 + sum(len(m.calls) for m in self._messages if isinstance(m, AssistantMessage))
        words = str(step.get("text", ""))
        parts: list[TextPart | CallPart] = [TextPart(type="text", text=words)] if words else []
        for number, item in enumerate(step.get("calls", ()), first):
            parts.append(
                CallPart(type="call", id=f"c{number}", tool=item["tool"], arguments=item.get("arguments") or {})
            )
        message = AssistantMessage(role="assistant", parts=tuple(parts), id=f"m{len(self._messages)}")
        return Reply(message=message, finish=step.get("finish", "stop"))

    async def _run(self, part: CallPart) -> Ran:
        function = self._tools.get(part.tool)
        if function is None:
            return self._answer(part, f"there is no tool {part.tool!r}", error=True)
        try:
            made = function(**part.arguments)
            made = await made if isawaitable(made) else made
        except Exception as error:  # a tool's failure is a value for the model
            return self._answer(part, f"{type(error).__name__}: {error}", error=True)
        return made if isinstance(made, Ran) else self._answer(part, made)

    def _answer(self, part: CallPart, words: str, *, error: bool = False) -> Ran:
        spec = self._spec.tool(part.tool)
        message = ToolMessage(role="tool", call=part.id, parts=text(words), error=error, id=f"m{len(self._messages)}")
        return Ran(message, final=spec is not None and spec.final and not error)

    def _user(self, words: str) -> UserMessage:
        return UserMessage(role="user", parts=text(words), id=f"m{len(self._messages)}")
