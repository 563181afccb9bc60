"""Histories with every payload in them, so that they can be replayed where the store cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.client import WorkflowHistory

from activities.stores.base import BlobMissing, BlobStore
from activities.stores.driver import StoreDriver, payload_storage, undecodable


async def inlined(history: WorkflowHistory, store: BlobStore) -> WorkflowHistory:
    """The history with what it refers to in its place; the given one is left as it is.

    A reference that a stranger sent and that leads nowhere becomes what the run has seen instead: an unreadable
    payload. Raises BlobMissing for any other, BlobCorrupt, StoreDown.
    """
    storage, driver = payload_storage(store), StoreDriver(store)
    whole = History(events=history.events)
    for event in whole.events:
        for payload in payloads(event):
            digest = storage.digest_of(payload)
            if digest is None:
                continue
            try:
                found = await driver.load(digest)
            except BlobMissing as missing:
                if not _from_outside(event):
                    raise
                found = undecodable(str(missing))
            payload.CopyFrom(found)
    return WorkflowHistory(history.workflow_id, list(whole.events))


def payloads(message: Message) -> Iterator[Payload]:
    """Every payload below a message."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            inner = value.values() if field.message_type.fields_by_name["value"].message_type else ()
        else:
            inner = value if field.is_repeated else (value,)
        for item in inner:
            yield from payloads(item)


def _from_outside(event: HistoryEvent) -> bool:
    """Whether anybody who can reach the run may have sent what the event holds."""
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        return not event.workflow_execution_started_event_attributes.continued_execution_run_id
    return event.event_type in (
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
    )
