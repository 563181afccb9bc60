"""What becomes of values on their way through Temporal: alone, and in a run on a real server."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RawValue, RetryPolicy
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.converter import PerdurePayloadConverter, data_converter
from activities.stores.base import StoreDown
from activities.stores.driver import OFFLOAD_BYTES, payload_storage
from activities.stores.files import FileStore
from perdure.embedded import EmbeddedServer
from perdure.plain import Plain
from perdure.undecodable import Undecodable


class Leaf(BaseModel):
    """A model with defaults."""

    kind: Literal["leaf"]
    size: int = 1
    note: Any = None


class Tree(BaseModel):
    """A model that holds models."""

    leaves: tuple[Leaf, ...] = ()
    name: str = "tree"


@dataclass
class Pair:
    """A dataclass, whose defaults are written."""

    left: int = 1
    right: Leaf | None = None


REFERENCE = {
    "encoding": b"json/protobuf",
    "messageType": ExternalStorageReference.DESCRIPTOR.full_name.encode(),
}
GARBAGE = {
    "no data": Payload(metadata={"encoding": b"json/plain"}),
    "half an object": Payload(metadata={"encoding": b"json/plain"}, data=b'{"approved": tr'),
    "not a number": Payload(metadata={"encoding": b"json/plain"}, data=b"NaN"),
    "not UTF-8": Payload(metadata={"encoding": b"json/plain"}, data=b'"\xff\xfe"'),
    "nested too deep": Payload(metadata={"encoding": b"json/plain"}, data=b"[" * 100_000),
    "a number too long": Payload(metadata={"encoding": b"json/plain"}, data=b"1" * 10_000),
    "unknown encoding": Payload(metadata={"encoding": b"binary/zip"}, data=b"PK"),
    "encoding of bytes": Payload(metadata={"encoding": b"\xff\xfe"}, data=b"1"),
    "no encoding": Payload(data=b"1"),
    "null with data": Payload(metadata={"encoding": b"binary/null"}, data=b"1"),
    "unknown message": Payload(metadata={"encoding": b"json/protobuf", "messageType": b"\xffno"}, data=b"{}"),
    "broken message": Payload(
        metadata={"encoding": b"binary/protobuf", "messageType": b"temporal.api.common.v1.Payload"}, data=b"\xff"
    ),
}
BROKEN_REFERENCES = {
    "no JSON": Payload(metadata=REFERENCE, data=b"{"),
    "another store": Payload(metadata=REFERENCE, data=b'{"driverName":"s3","claimData":{"digest":"x"}}'),
    "no claim": Payload(metadata=REFERENCE, data=b'{"driverName":"perdure"}'),
    "a path": Payload(metadata=REFERENCE, data=b'{"driverName":"perdure","claimData":{"digest":"../../x"}}'),
    "old form": Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b"[1]"),
}


def round_trip(value: Any, hint: Any) -> Any:
    """A value through a payload and back."""
    converter = PerdurePayloadConverter()
    return converter.from_payloads([converter.to_payload(value)], [hint])[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Leaf(kind="leaf"), '{"kind":"leaf"}'),
        (Leaf(kind="leaf", size=1, note=None), '{"kind":"leaf"}'),
        (Tree(leaves=(Leaf(kind="leaf", size=2),)), '{"leaves":[{"kind":"leaf","size":2}]}'),
        ([Tree()], "[{}]"),
        ({"tree": Tree(name="oak")}, '{"tree":{"name":"oak"}}'),
        (Pair(right=Leaf(kind="leaf")), '{"left":1,"right":{"kind":"leaf"}}'),
        (timedelta(seconds=90), '"PT1M30S"'),
        ({"a": None, "b": 0, "c": ""}, '{"a":null,"b":0,"c":""}'),
        (float("nan"), "null"),
        (Plain(state="done"), '{"state":"done"}'),
        ("\x00 Grüße 😀", '"\\u0000 Grüße 😀"'),
    ],
)
def test_values_are_written_small(value: Any, text: str) -> None:
    """Models leave out what has its default, at any depth; everything else is written whole, and always as JSON."""
    payload = PerdurePayloadConverter().to_payload(value)
    assert payload.data.decode() == text
    assert dict(payload.metadata) == {"encoding": b"json/plain"}


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Tree(leaves=(Leaf(kind="leaf", note={"x": [1]}),)), Tree),
        ([Leaf(kind="leaf")], list[Leaf]),
        ({"a": Leaf(kind="leaf", size=3)}, dict[str, Leaf]),
        (Pair(left=4), Pair),
        (7, Annotated[int, Field(json_schema_extra={"unhashable": []})]),
        (Plain(a=1), Plain),
        ({"a": [1, 2.5, None, True, "x"]}, Any),
        (None, int),
        (None, Any),
        (b"\x00\xff", bytes),
        (b"\x00\xff", bytes | None),
        (b"\x00\xff", Any),
        (Payload(data=b"a message"), Payload),
        (Payload(data=b"a message"), Any),
    ],
)
def test_values_come_back(value: Any, hint: Any) -> None:
    """What was written is read back as the type that is expected."""
    back = round_trip(value, hint)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("ok \ud83d end", "ok \ufffd end"),
        ("\udc97", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ({"\udcff": ["\ud800", ("\ud800",)]}, {"\ufffd": ["\ufffd", ["\ufffd"]]}),
        (Leaf(kind="leaf", note={"k\ud800": "v\ud800"}), {"kind": "leaf", "note": {"k\ufffd": "v\ufffd"}}),
        (Plain(text="\ud800"), {"text": "\ufffd"}),
    ],
)
def test_lone_surrogates_become_replacement_characters(value: Any, seen: Any) -> None:
    """A lone surrogate in text or a key becomes U+FFFD, a pair the character that it means."""
    assert round_trip(value, Any) == seen


@pytest.mark.parametrize("hint", [None, Any, str])
def test_surrogates_in_what_comes_in(hint: Any) -> None:
    """Escapes of lone surrogates that somebody sends are U+FFFD too, so that they cannot surface later."""
    payload = Payload(metadata={"encoding": b"json/plain"}, data=rb'"a\ud83d b\uD83D\uDE00"')
    assert PerdurePayloadConverter().from_payloads([payload], None if hint is None else [hint]) == ["a\ufffd b😀"]


@pytest.mark.parametrize("hints", [None, [Any], [Optional[Any]]], ids=["none", "any", "optional"])  # noqa: UP045
@pytest.mark.parametrize("payload", GARBAGE.values(), ids=list(GARBAGE))
def test_garbage_is_a_value(payload: Payload, hints: Any) -> None:
    """Where no type is expected a broken payload is an Undecodable with a short reason, and nothing is raised."""
    (value,) = PerdurePayloadConverter().from_payloads([payload], hints)
    assert isinstance(value, Undecodable)
    assert 0 < len(value.reason) < 300


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=list(GARBAGE))
def test_garbage_for_a_type_is_an_error(payload: Payload) -> None:
    """Where a type is expected a broken payload is an error, never a value of another type."""
    with pytest.raises((ValueError, RuntimeError)):
        PerdurePayloadConverter().from_payloads([payload], [Leaf])


def test_a_value_that_does_not_fit_is_not_shown() -> None:
    """The error about a value of another shape names the places and not the value, which may be a secret."""
    payload = PerdurePayloadConverter().to_payload({"kind": "leaf", "size": "hunter2"})
    with pytest.raises(ValueError, match=r"does not fit Leaf: size: ") as caught:
        PerdurePayloadConverter().from_payloads([payload], [Leaf])
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(ValueError, match="does not fit str"):
        round_trip(b"bytes", str)


def test_raw_values_pass_untouched() -> None:
    """A RawValue is its payload in both directions, broken or not."""
    converter = PerdurePayloadConverter()
    for payload in GARBAGE.values():
        (value,) = converter.from_payloads([payload], [RawValue])
        assert isinstance(value, RawValue)
        assert converter.to_payload(value) == payload


@pytest.mark.parametrize("size", [OFFLOAD_BYTES - 100, OFFLOAD_BYTES - 30, OFFLOAD_BYTES, 3 * OFFLOAD_BYTES])
async def test_large_values_leave_and_plain_ones_stay(store: FileStore, size: int) -> None:
    """From the threshold on a value is replaced by a reference and comes back whole; a Plain value is never."""
    converter = data_converter(store)
    value = {"text": "x" * (size - len('{"text":""}'))}
    (whole,) = await data_converter(None).encode([value])
    (kept,) = await converter.encode([value])
    (plain,) = await converter.encode([Plain(value)])
    leaves = whole.ByteSize() >= OFFLOAD_BYTES
    assert (kept.ByteSize() < 1000) is leaves
    assert plain.data == whole.data
    assert await converter.decode([kept, plain], [dict, dict]) == [value, value]


@pytest.mark.parametrize("payload", BROKEN_REFERENCES.values(), ids=list(BROKEN_REFERENCES))
async def test_a_broken_reference_is_a_value(store: FileStore, payload: Payload) -> None:
    """A reference that cannot be followed by any worker is an Undecodable like other garbage."""
    (value,) = await data_converter(store).decode([payload])
    assert isinstance(value, Undecodable)
    assert "reference" in value.reason


async def test_a_missing_blob_is_refused_or_an_error(store: FileStore) -> None:
    """Where anything may come a reference to nothing is an Undecodable; where a type is expected it is an error."""
    converter = data_converter(store)
    (sent,) = await converter.encode([{"text": "m" * OFFLOAD_BYTES}])
    digest = payload_storage(store).digest_of(sent)
    assert digest is not None
    await store.delete(digest)
    (value,) = await converter.decode([sent])
    assert isinstance(value, Undecodable)
    assert digest in value.reason
    with pytest.raises(ValueError, match=digest):
        await converter.decode([sent], [dict])


async def test_an_outage_is_no_missing_blob(store: FileStore, tmp_path: Path) -> None:
    """While the store is away nothing is refused: it is an error, after which Temporal tries again."""
    (tmp_path / "file").touch()
    (sent,) = await data_converter(store).encode([{"text": "a" * OFFLOAD_BYTES}])
    for away in (FileStore(tmp_path / "not mounted"), FileStore(tmp_path / "file" / "blobs")):
        with pytest.raises(StoreDown, match=str(tmp_path)):
            await data_converter(away).decode([sent])
    with pytest.raises(StoreDown, match=str(tmp_path)):
        await data_converter(away).encode([{"text": "a" * OFFLOAD_BYTES}])


@activity.defn
async def make(size: int) -> dict[str, str]:
    """A result of about `size` bytes."""
    return {"text": "x" * size}


@activity.defn
async def measure(value: dict[str, str]) -> int:
    """The size of an argument."""
    return len(value["text"])


@activity.defn
async def damaged() -> str:
    """Text as a careless decoder makes it."""
    return "ok \ud83d end"


@activity.defn
async def resume() -> int:
    """A large heartbeat, and its size in the next attempt."""
    if activity.info().attempt == 1:
        activity.heartbeat("h" * 200_000)
        raise RuntimeError("once more")
    return len(activity.info().heartbeat_details[0])


@workflow.defn
class Tour:
    """Takes values of all sizes through everything that carries payloads."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.text = ""

    @workflow.run
    async def run(self, given: Any = None) -> Plain:
        """Large results in and out of activities, then whatever is signalled until it is `"end"`."""
        timeout = timedelta(seconds=30)
        self._hear(given)
        large = await workflow.execute_activity(make, 3_000_000, start_to_close_timeout=timeout)
        size = await workflow.execute_activity(measure, large, start_to_close_timeout=timeout)
        self.text = await workflow.execute_activity(damaged, start_to_close_timeout=timeout)
        retry = RetryPolicy(initial_interval=timedelta(milliseconds=10))
        resumed = await workflow.execute_activity(
            resume, start_to_close_timeout=timeout, heartbeat_timeout=timeout, retry_policy=retry
        )
        await workflow.wait_condition(lambda: "value 'end'" in self.heard)
        return Plain(size=size, resumed=resumed, heard=self.heard, text=self.text, filling="x" * 100_000)

    @workflow.signal
    def tell(self, payload: Any = None) -> None:
        """Take anything."""
        self._hear(payload)

    @workflow.query
    def show(self, size: int) -> Plain:
        """A large answer."""
        return Plain(text=self.text, filling="x" * size)

    @workflow.update
    def grow(self, size: int) -> Plain:
        """A large answer to an update."""
        return Plain(filling="x" * size)

    @workflow.update
    async def settle(self) -> None:
        """Wait until the activities with large values are done."""
        await workflow.wait_condition(lambda: bool(self.text))

    def _hear(self, payload: Any) -> None:
        self.heard.append("garbage" if isinstance(payload, Undecodable) else f"value {payload!r}")


@pytest.fixture
async def queue(client: Client) -> AsyncIterator[str]:
    """A task queue with a worker for the tour, in the sandbox, with the package passed through as a worker has it."""
    name = f"converter-{uuid.uuid4()}"
    runner = SandboxedWorkflowRunner(SandboxRestrictions.default.with_passthrough_modules("perdure", "activities"))
    async with Worker(
        client, task_queue=name, workflows=[Tour], activities=[make, measure, damaged, resume], workflow_runner=runner
    ):
        yield name


async def start(client: Client, queue: str, given: Any) -> WorkflowHandle[Any, Any]:
    """A tour under a fresh name."""
    return await client.start_workflow("Tour", given, id=f"tour-{uuid.uuid4()}", task_queue=queue)


async def history_bytes(handle: WorkflowHandle[Any, Any]) -> int:
    """The size of a run's history as the server counts it."""
    return (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes


async def test_a_run_carries_everything(client: Client, queue: str, temporal_server: EmbeddedServer) -> None:
    """Megabytes pass by the store, answers and the result stay readable without it, surrogates are replaced."""
    handle = await start(client, queue, Tree())
    # Temporal's own tools know nothing of the store: they are like this client.
    bare = (await Client.connect(temporal_server.address)).get_workflow_handle(handle.id)
    assert await bare.execute_update("grow", 100_000) == {"filling": "x" * 100_000}
    assert (await bare.query("show", 100_000))["filling"] == "x" * 100_000
    updated = await history_bytes(handle)
    assert updated > 100_000
    await handle.signal("tell", "end")
    result = await bare.result()
    assert result["size"] == 3_000_000
    assert result["resumed"] == 200_000
    assert result["text"] == "ok \ufffd end"
    assert (await client.get_workflow_handle(handle.id, result_type=Plain).result()) == result
    last = [event async for event in handle.fetch_history_events()][-1]
    (payload,) = last.workflow_execution_completed_event_attributes.result.payloads
    assert payload.metadata["encoding"] == b"json/plain"
    assert json.loads(payload.data) == result


async def test_history_stays_small(client: Client, queue: str) -> None:
    """A result of 3 MB that is passed on to the next activity costs the history two references."""
    handle = await start(client, queue, "x" * 1_000_000)
    await handle.execute_update("settle")
    assert await history_bytes(handle) < 20_000
    await handle.terminate()


async def test_garbage_reaches_the_handlers(client: Client, queue: str) -> None:
    """Broken input and broken signals are values that the run refuses; it goes on and takes the next sound one."""
    broken = [*GARBAGE.values(), *BROKEN_REFERENCES.values()]
    handle = await start(client, queue, RawValue(broken[1]))
    for payload in broken:
        await handle.signal("tell", RawValue(payload))
    await handle.signal("tell", {"approved": True})
    await handle.signal("tell", "end")
    result = await handle.result()
    assert result["heard"] == ["garbage"] * (1 + len(broken)) + ["value {'approved': True}", "value 'end'"]
    events = [event async for event in handle.fetch_history_events()]
    assert not any(event.HasField("workflow_task_failed_event_attributes") for event in events)
