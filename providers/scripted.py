"""A model without a network: a script decides the replies, the same in every attempt and after every restart."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import AssistantMessage, Message, ToolMessage, Usage, UserMessage, text_of
from perdure.model_call import Finish, ModelReply, ModelRequest, RawCall, RawText

_PLACEHOLDER = re.compile(r"\{\{(last_tool_text|user|step|tool:([\w-]+)((?:\.[\w-]+)*))\}\}")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptedCall(_Strict):
    """A tool call; `arguments` as text is passed on undecoded, damaged or not."""

    tool: str
    arguments: dict[str, Any] | str | None = None


class ScriptedError(_Strict):
    """A failure in the attempts 1 to `times`, or in every attempt."""

    kind: ErrorKind
    message: str = "the script says so"
    times: int | None = Field(default=None, ge=1)
    retry_after: float | None = Field(default=None, ge=0)
    """Seconds."""
    status: int | None = None


class Step(_Strict):
    """One reply of the script."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    usage: Usage | None = None
    finish: Finish = Finish.STOP
    error: ScriptedError | None = None
    repeat: bool = False
    """On the last step: it answers every later request too."""
    delay_ms: int = Field(default=0, ge=0)
    """How long the reply takes."""
    chunks: int = Field(default=1, ge=1)
    """In how many pieces the text is streamed."""


_SCRIPT: TypeAdapter[list[Step]] = TypeAdapter(list[Step])


@dataclass(frozen=True)
class ScriptedTurn:
    """A reply with how it is to be shown: pieces of its text, and milliseconds over which they come."""

    reply: ModelReply
    chunks: tuple[str, ...]
    delay_ms: int


class Scripted:
    """The provider `scripted`: nothing goes over a wire, so it plays instead of building and parsing."""

    name = "scripted"

    def play(self, request: ModelRequest, attempt: int = 1) -> ScriptedTurn:
        """The reply to a request; see `play`."""
        return play(request, attempt)


def play(request: ModelRequest, attempt: int = 1) -> ScriptedTurn:
    """The step of `params["script"]` whose position is the number of replies in the request so far.

    Texts and arguments may hold `{{user}}` (the last words of the user), `{{last_tool_text}}`, `{{tool:c2}}`,
    `{{tool:c2.path.to.field}}` (a field of a result that is JSON) and `{{step}}` (the number of this reply); alone in
    an argument they keep their type. `attempt` counts from 1. Raises ProviderError: what the step says, CONFIGURATION
    for a broken script, INVALID_REQUEST beyond its end or for a placeholder that stands for nothing.
    """
    step = _step(request)
    if step.error and (step.error.times is None or attempt <= step.error.times):
        raise ProviderError(
            step.error.kind,
            f"scripted: {step.error.message}",
            status=step.error.status,
            retry_after=step.error.retry_after,
        )
    text = _filled(step.text, request.messages)
    calls = tuple(RawCall(tool=call.tool, arguments=_resolved(call.arguments, request.messages)) for call in step.calls)
    parts: tuple[RawText | RawCall, ...] = (*((RawText(text),) if text else ()), *calls)
    spoken = len(text) + sum(len(_as_text(call.arguments)) for call in calls)
    usage = step.usage or Usage(
        input_tokens=_tokens(sum(map(_length, request.messages))), output_tokens=_tokens(spoken)
    )
    reply = ModelReply(
        parts=parts, finish=step.finish, usage=usage, announced_calls=bool(calls), model=request.model or "scripted"
    )
    return ScriptedTurn(reply=reply, chunks=_pieces(text, step.chunks), delay_ms=step.delay_ms)


def _step(request: ModelRequest) -> Step:
    try:
        script = _SCRIPT.validate_python(request.params.get("script"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(item) for item in ("script", *first["loc"]))
        raise ProviderError(
            ErrorKind.CONFIGURATION,
            f'scripted: {where}: {first["msg"]}; give a model params={{"script": [{{"text": "..."}}]}}',
        ) from error
    position = sum(isinstance(message, AssistantMessage) for message in request.messages)
    if position < len(script):
        return script[position]
    if script and script[-1].repeat:
        return script[-1]
    raise ProviderError(
        ErrorKind.INVALID_REQUEST,
        f"scripted: the script has {len(script)} steps, step {position + 1} was asked",
    )


def _resolved(value: Any, messages: tuple[Message, ...]) -> Any:
    if isinstance(value, str):
        alone = _PLACEHOLDER.fullmatch(value)
        return _value(alone, messages) if alone else _filled(value, messages)
    if isinstance(value, Mapping):
        return {key: _resolved(item, messages) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, messages) for item in value]
    return value


def _filled(text: str, messages: tuple[Message, ...]) -> str:
    return _PLACEHOLDER.sub(lambda match: _as_text(_value(match, messages)), text)


def _value(match: re.Match[str], messages: tuple[Message, ...]) -> Any:
    kind, call, path = match.group(1, 2, 3)
    found: Sequence[Message]
    if kind == "step":
        return 1 + sum(isinstance(m, AssistantMessage) for m in messages)
    if kind == "user":
        found = [m for m in messages if isinstance(m, UserMessage)]
    elif kind == "last_tool_text":
        found = [m for m in messages if isinstance(m, ToolMessage)]
    else:
        found = [m for m in messages if isinstance(m, ToolMessage) and m.call == call]
    if not found:
        raise ProviderError(ErrorKind.INVALID_REQUEST, f"scripted: there is no message for {match.group()}")
    text = text_of(found[-1])
    if not path:
        return text
    try:
        value = json.loads(text)
        for name in path[1:].split("."):
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (ValueError, LookupError, TypeError) as error:
        raise ProviderError(
            ErrorKind.INVALID_REQUEST, f"scripted: the result of {call} has nothing for {match.group()}: {text[:200]!r}"
        ) from error
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _length(message: Message) -> int:
    calls = message.calls if isinstance(message, AssistantMessage) else ()
    return len(text_of(message)) + sum(len(call.tool) + len(_as_text(call.arguments)) for call in calls)


def _tokens(characters: int) -> int:
    return -(-characters // 4)


def _pieces(text: str, count: int) -> tuple[str, ...]:
    size = max(-(-len(text) // count), 1)
    return tuple(text[start : start + size] for start in range(0, len(text), size))
