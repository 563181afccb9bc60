"""What a worker remembers of conversations and runs: a hint that saves queries, never the truth.

A model call names the messages it needs by id. A remembered prefix counts only if its last id agrees; whatever is
missing is asked of the run itself by query, page by page, which leaves no trace in its history.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.agent import AgentSpec
from perdure.contracts import ConversationRef, RunContext
from perdure.messages import MESSAGES, Message, media_of, text_of

DEFAULT_BYTES = 256 * 1024 * 1024
OVERHEAD = 400
"""Bytes that a message takes beside its text, about."""


@dataclass
class _Entry:
    """Messages of one run in order, or one message that waits for its place."""

    messages: list[Message]
    size: int


class Transcripts:
    """An LRU of conversations and of single fresh messages, bounded in bytes."""

    def __init__(self, most_bytes: int = DEFAULT_BYTES) -> None:
        self._most = most_bytes
        self._size = 0
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self.queries = 0
        """Pages asked for so far."""

    def remember(self, run: str, message: Message) -> None:
        """Keep a message that an attempt on this worker has just made; it counts once its id is recorded."""
        self._put((run, message.id), [message])

    async def load(self, ref: ConversationRef, client: Client, run: str) -> list[Message]:
        """The conversation that `ref` means. Raises a retryable error where the run cannot say it yet."""
        known = self._known(ref, run)
        if len(known) < ref.count:
            known = await self._ask(client, known, ref.count)
        last = ref.tail[-1] if ref.tail else ref.base
        if known and known[-1].id != (last if isinstance(last, str) else last.id):
            raise ApplicationError("the conversation has moved on", type="ConversationMoved")
        self._put((run, ""), known)
        return known

    def known(self, run: str) -> list[Message]:
        """The conversation of a run as its last call here had it, as far as it is remembered."""
        entry = self._entries.get((run, ""))
        return list(entry.messages) if entry else []

    def _known(self, ref: ConversationRef, run: str) -> list[Message]:
        before = ref.count - len(ref.tail)
        known: list[Message] = []
        if before:
            entry = self._entries.get((run, ""))
            if entry is None or len(entry.messages) < before or entry.messages[before - 1].id != ref.base:
                return []
            known = entry.messages[:before]
        for item in ref.tail:
            if isinstance(item, str):
                fresh = self._entries.get((run, item))
                if fresh is None:
                    return known
                known.append(fresh.messages[0])
            else:
                known.append(item)
        for item in ref.tail:
            if isinstance(item, str):
                self._drop((run, item))
        return known

    async def _ask(self, client: Client, known: Sequence[Message], count: int) -> list[Message]:
        info = activity.info()
        handle = client.get_workflow_handle(_given(info.workflow_id), run_id=info.workflow_run_id)
        messages = list(known)
        while len(messages) < count:
            self.queries += 1
            answer: dict[str, Any] = await handle.query("conversation", {"after": len(messages)})
            page = MESSAGES.validate_python(answer["messages"][: count - len(messages)])
            if not page:
                raise ApplicationError("the conversation is not there yet", type="ConversationMissing")
            messages.extend(page)
        return messages

    def _put(self, key: tuple[str, str], messages: list[Message]) -> None:
        before = self._drop(key)
        # A conversation only grows, so what was measured is not measured again.
        known = before if before is not None and _begins_with(messages, before.messages) else _Entry([], 0)
        fresh = messages[len(known.messages) :]
        entry = _Entry(messages, known.size + sum(map(_size, fresh)))
        self._entries[key] = entry
        self._size += entry.size
        while self._size > self._most and len(self._entries) > 1:
            _, oldest = self._entries.popitem(last=False)
            self._size -= oldest.size

    def _drop(self, key: tuple[str, str]) -> _Entry | None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._size -= entry.size
        return entry


def _begins_with(messages: Sequence[Message], first: Sequence[Message]) -> bool:
    """Whether these are the same messages and perhaps more; the last of them stands for all."""
    return 0 < len(first) <= len(messages) and messages[len(first) - 1] is first[-1]


class Contexts:
    """The frozen specs of runs, by run id; one that is missing is asked of the run by query."""

    def __init__(self, most: int = 2_000) -> None:
        self._most = most
        self._known: OrderedDict[str, RunContext] = OrderedDict()
        self._specs: WeakValueDictionary[str, AgentSpec] = WeakValueDictionary()

    def put(self, context: RunContext) -> None:
        """Keep the context that this activity's run is about to have; equal specs are kept once."""
        same = self._specs.setdefault(context.digest, context.spec)
        if same is not context.spec and same == context.spec:
            context = context.model_copy(update={"spec": same})
        self._known[_given(activity.info().workflow_run_id)] = context
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def known(self) -> RunContext | None:
        """The context of the run whose activity this is, where it is remembered."""
        return self._known.get(activity.info().workflow_run_id or "")

    async def get(self, client: Client) -> RunContext:
        """The context of the run whose activity this is."""
        info = activity.info()
        run_id = _given(info.workflow_run_id)
        found = self._known.get(run_id)
        if found is None:
            handle = client.get_workflow_handle(_given(info.workflow_id), run_id=run_id)
            answer: dict[str, Any] = await handle.query("spec")
            if not answer:
                raise ApplicationError("the run has no spec yet", type="ConversationMissing")
            found = RunContext.model_validate(answer)
            self.put(found)
        self._known.move_to_end(run_id)
        return found


def chain_of(run: str | None) -> str:
    """First run id of the chain that an activity belongs to; `run` is it where it is not the current run's."""
    return run or _given(activity.info().workflow_run_id)


def _given(value: str | None) -> str:
    assert value is not None, "these activities run inside workflows only"
    return value


def _size(message: Message) -> int:
    """About how many bytes it takes."""
    return OVERHEAD + len(text_of(message)) + sum(len(part.base64 or "") for part in media_of(message))
