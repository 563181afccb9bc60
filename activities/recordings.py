"""Recordings of real calls of models: kept as lines of JSON without credentials, and played again in a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temporalio import activity

from perdure.canonical import digest
from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model import Model
from perdure.model_call import Finish, ModelReply, ModelRequest, RawCall, RawText, RawThinking
from perdure.redact import Redactor, secrets_of
from perdure.worker_settings import RECORDING_NAME, WorkerSettings

RECORDED = "recorded"
"""The provider that plays recordings: `recorded:NAME`."""
_KINDS: Mapping[str, type[RawText | RawThinking]] = {"text": RawText, "thinking": RawThinking}


class Recordings:
    """The recordings of a worker: `recordings/NAME.jsonl` in its data folder."""

    def __init__(self, settings: WorkerSettings, environment: Mapping[str, str]) -> None:
        self._folder = Path(settings.data_dir) / "recordings"
        self._writes = settings.recording
        self._redactor = Redactor(secrets_of(environment))

    async def keep(self, model: Model, request: ModelRequest, reply: ModelReply) -> None:
        """Add a call to the recording; one that cannot be kept is told in the log and harms nobody."""
        if self._writes is None or model.provider == RECORDED:
            return
        asked = self._asked(request)
        line = {"model": model.label, "digest": digest(asked), "request": asked, "reply": self._said(reply)}
        try:
            await asyncio.to_thread(self._append, json.dumps(line, ensure_ascii=False))
        except (OSError, ValueError) as error:
            activity.logger.error("a call of %s could not be recorded: %s", model.label, error)

    async def play(self, model: Model, request: ModelRequest) -> ModelReply:
        """The recorded reply to the same request, or to the same step with `params={"match": "position"}`.

        Raises ProviderError (CONFIGURATION, INVALID_REQUEST) where there is no such recording or reply.
        """
        lines = await asyncio.to_thread(self._read, model.name)
        match = model.params.get("match", "strict")
        if match not in ("strict", "position"):
            raise ProviderError(ErrorKind.CONFIGURATION, f'{model.label}: match must be "strict" or "position"')
        asked = self._asked(request)
        wanted, step = digest(asked), _step(asked)
        for line in lines:
            if line["digest"] == wanted or (match == "position" and _step(line["request"]) == step):
                return _reply(line["reply"])
        raise ProviderError(ErrorKind.INVALID_REQUEST, f"{model.label}: {_difference(lines, asked)}")

    def _append(self, line: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._file(self._writes or "").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def _read(self, name: str) -> list[Any]:
        try:
            text = self._file(name).read_text(encoding="utf-8")
            lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            raise ProviderError(
                ErrorKind.CONFIGURATION, f"{RECORDED}:{name}: the recording cannot be read: {error}"
            ) from None
        if broken := next((n for n, line in enumerate(lines, 1) if not _is_call(line)), 0):
            raise ProviderError(ErrorKind.CONFIGURATION, f"{RECORDED}:{name}: line {broken} is no recorded call")
        return lines

    def _file(self, name: str) -> Path:
        if not RECORDING_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a recording: letters, digits, dots, - and _")
        return self._folder / f"{name}.jsonl"

    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        """What of a request a reply depends on; ids and signatures differ from run to run."""
        messages = [
            {
                **message.model_dump(mode="json", exclude={"id", "parts"}, exclude_defaults=True),
                "parts": [
                    part.model_dump(mode="json", exclude={"details"}, exclude_none=True) for part in message.parts
                ],
            }
            for message in request.messages
        ]
        asked = {
            "instructions": request.instructions,
            "messages": messages,
            "tools": {tool.name: digest(dict(tool.parameters)) for tool in request.tools},
            "tool_choice": request.tool_choice,
            "output_schema": dict(request.output_schema) if request.output_schema is not None else None,
        }
        cleaned: dict[str, Any] = self._redactor.value(asked)
        return cleaned

    def _said(self, reply: ModelReply) -> Any:
        parts = [
            {"type": "call", "tool": part.tool, "arguments": part.arguments, "details": part.details}
            if isinstance(part, RawCall)
            else {
                "type": "text" if isinstance(part, RawText) else "thinking",
                "text": part.text,
                "details": part.details,
            }
            for part in reply.parts
        ]
        usage = reply.usage.model_dump() if reply.usage else None
        said = {"parts": parts, "finish": reply.finish.value, "usage": usage, "announced_calls": reply.announced_calls}
        return self._redactor.value({**said, "model": reply.model})


def _is_call(line: Any) -> bool:
    return isinstance(line, dict) and {"digest", "request", "reply"} <= line.keys()


def _step(asked: Mapping[str, Any]) -> int:
    return sum(message["role"] == "assistant" for message in asked["messages"])


def _reply(said: Mapping[str, Any]) -> ModelReply:
    return ModelReply(
        parts=tuple(
            RawCall(part["tool"], part["arguments"], part.get("details"))
            if part["type"] == "call"
            else _KINDS[part["type"]](part["text"], part.get("details"))
            for part in said["parts"]
        ),
        finish=Finish(said["finish"]),
        usage=Usage(**said["usage"]) if said.get("usage") else None,
        announced_calls=bool(said.get("announced_calls")),
        model=said.get("model", ""),
    )


def _difference(lines: list[Any], asked: Mapping[str, Any]) -> str:
    """Where the nearest recorded request is another one."""
    same = [line["request"] for line in lines if _step(line["request"]) == _step(asked)]
    if not same:
        return f"no call at step {_step(asked) + 1} is recorded"
    for field in ("instructions", "tools", "tool_choice", "output_schema"):
        if all(request.get(field) != asked[field] for request in same):
            return f"no recorded call has these {field}"
    for place, message in enumerate(asked["messages"]):
        same = [r for r in same if r["messages"][place : place + 1] == [message]] or []
        if not same:
            return f"no recorded call has this message {place + 1} ({message['role']})"
    return "no recorded call is the same"
