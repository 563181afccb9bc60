"""Large payloads of Temporal in a store of blobs, with a reference in history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.converter import (
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverSelectContext,
    StorageDriverStoreContext,
)

from activities.stores.base import DIGEST, BlobMissing, BlobStore, StoreDown

OFFLOAD_BYTES = 64 * 1024
"""Payloads of this size on leave history."""

INLINE_BYTES = 1_900_000
"""Up to this size the server takes a payload."""

INLINE = ("perdure", b"inline")
"""Metadata of a large payload that stays in history; see `perdure.plain.Plain`."""

UNDECODABLE = b"perdure/undecodable"
"""Encoding of what is given in place of a reference that refers to nothing; its data is the reason."""

PAUSES = (0.1, 0.5)
"""Seconds before a missing blob is looked for again: a folder shared by hosts may show a new file a little late."""


class StoreDriver(StorageDriver):
    """Keeps payloads in `store`, whatever its kind under the one name `perdure`: a store may be moved to another."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    def name(self) -> str:
        """See base class."""
        return "perdure"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Keep each payload with its metadata; the claim is `{"digest": "sha256:..."}`."""
        blobs = (p.SerializeToString(deterministic=True) for p in payloads)
        digests = await asyncio.gather(*(self._store.put(blob) for blob in blobs))
        return [StorageDriverClaim({"digest": digest}) for digest in digests]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Return the payloads of claims, an UNDECODABLE one where there is no such blob, which is for ever.

        Raises BlobCorrupt and StoreDown, after which Temporal tries again.
        """
        return list(await asyncio.gather(*(self._find(claim.claim_data.get("digest", "")) for claim in claims)))

    async def _find(self, digest: str) -> Payload:
        try:
            return await self.load(digest)
        except BlobMissing as missing:
            return undecodable(f"the reference to a stored payload leads nowhere: {missing}")

    async def load(self, digest: str) -> Payload:
        """Return one payload, UNDECODABLE where the digest is malformed; raises BlobMissing, BlobCorrupt, StoreDown."""
        if not DIGEST.fullmatch(digest):
            return undecodable("the reference to a stored payload is malformed")
        payload = Payload()
        try:
            payload.ParseFromString(await self._get(digest))
        except DecodeError:
            return undecodable("the reference does not lead to a payload")
        return payload

    async def _get(self, digest: str) -> bytes:
        for pause in PAUSES:
            try:
                return await self._store.get(digest)
            except BlobMissing:
                await asyncio.sleep(pause)
        return await self._store.get(digest)


@dataclass(frozen=True)
class PayloadStorage(ExternalStorage):
    """External storage for which a malformed or foreign reference is an unreadable payload instead of an error.

    Anybody who may signal a run can send one, and an error here would fail the workflow task again and again.
    """

    def _decode_reference(self, payload: Payload) -> ExternalStorageReference | None:
        try:
            reference = super()._decode_reference(payload)
        except Exception:  # the converters raise many kinds for text that they cannot parse
            return ExternalStorageReference(driver_name=self.drivers[0].name())
        if reference is not None and reference.driver_name not in self._driver_map:
            return ExternalStorageReference(driver_name=self.drivers[0].name())
        return reference

    async def _store_payload(self, payload: Payload) -> Payload:
        try:
            return await super()._store_payload(payload)
        except StoreDown:
            # The deed is done: its result must not be lost with the store, as long as history takes it.
            if activity.in_activity() and payload.ByteSize() <= INLINE_BYTES:
                return payload
            raise

    def digest_of(self, payload: Payload) -> str | None:
        """The digest that a payload refers to, None where it is no reference; it may be malformed."""
        reference = self._decode_reference(payload)
        return None if reference is None else reference.claim_data.get("digest", "")


def payload_storage(store: BlobStore) -> PayloadStorage:
    """External storage in `store` for payloads from OFFLOAD_BYTES on, save those that carry INLINE."""
    driver = StoreDriver(store)
    key, value = INLINE

    def select(context: StorageDriverSelectContext, payload: Payload) -> StorageDriver | None:
        return None if payload.metadata.get(key) == value else driver

    return PayloadStorage(drivers=[driver], driver_selector=select, payload_size_threshold=OFFLOAD_BYTES)


def undecodable(reason: str) -> Payload:
    """What stands for a payload that there is not; it decodes to `perdure.undecodable.Undecodable`, or is an error."""
    return Payload(metadata={"encoding": UNDECODABLE}, data=reason.encode())
