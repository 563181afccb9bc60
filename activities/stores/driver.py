"""Large payloads of Temporal in a store of blobs, with a reference in history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError
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

from activities.stores.base import DIGEST, BlobStore

OFFLOAD_BYTES = 64 * 1024
"""Payloads of this size on leave history."""

INLINE = ("perdure", b"inline")
"""Metadata of a large payload that stays in history; see `perdure.plain.Plain`."""

UNDECODABLE = b"perdure/undecodable"
"""Encoding of what is given in place of a reference that refers to nothing; its data is the reason."""


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
        """Return the payloads of claims; raises BlobMissing or BlobCorrupt, after which Temporal tries again."""
        return list(await asyncio.gather(*(self._load(claim.claim_data.get("digest", "")) for claim in claims)))

    async def _load(self, digest: str) -> Payload:
        if not DIGEST.fullmatch(digest):
            return _undecodable("the reference to a stored payload is malformed")
        payload = Payload()
        try:
            payload.ParseFromString(await self._store.get(digest))
        except DecodeError:
            return _undecodable("the reference does not lead to a payload")
        return payload


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


def payload_storage(store: BlobStore) -> PayloadStorage:
    """External storage in `store` for payloads from OFFLOAD_BYTES on, save those that carry INLINE."""
    driver = StoreDriver(store)
    key, value = INLINE

    def select(context: StorageDriverSelectContext, payload: Payload) -> StorageDriver | None:
        return None if payload.metadata.get(key) == value else driver

    return PayloadStorage(drivers=[driver], driver_selector=select, payload_size_threshold=OFFLOAD_BYTES)


def _undecodable(reason: str) -> Payload:
    return Payload(metadata={"encoding": UNDECODABLE}, data=reason.encode())
