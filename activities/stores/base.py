"""What a store of blobs is: bytes under their own SHA-256."""

from __future__ import annotations

import hashlib
import re
from typing import Protocol

from perdure.errors import PerdureError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class BlobMissing(PerdureError):
    """There is no such blob, or the text is no digest; the message names it and where it was looked for."""


class BlobCorrupt(PerdureError):
    """A blob's bytes are not those of its digest; the message names it and where it lies."""


class StoreDown(PerdureError):
    """The store cannot be used just now; the message says where it is and why. Trying again later may help."""


class BlobStore(Protocol):
    """Keeps bytes under a digest `"sha256:<64 hex digits>"`; several processes may use one store at once.

    Every method raises StoreDown where the store cannot be used.
    """

    async def prepare(self) -> None:
        """Write and read one small blob, so that a store that cannot be used is told at once; raises ConfigError."""
        ...

    async def put(self, data: bytes) -> str:
        """Keep `data` durably and return its digest; a damaged copy already there is replaced."""
        ...

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest, verified; raises BlobMissing or BlobCorrupt."""
        ...

    async def exists(self, digest: str) -> bool:
        """Whether there is a blob under this digest; what is no digest has none."""
        ...

    async def delete(self, digest: str) -> None:
        """Remove a blob; one that is not there, or no digest, is no error."""
        ...


def digest_of(data: bytes) -> str:
    """The digest under which a store keeps `data`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def verify(digest: str, data: bytes, place: str) -> bytes:
    """The data, if they are those of the digest; raises BlobCorrupt, which names the place."""
    if digest_of(data) != digest:
        raise BlobCorrupt(f"{place} does not hold the bytes of {digest}; restore it from a backup")
    return data


def check(digest: str) -> None:
    """Raise BlobMissing for a text that is no digest."""
    if not DIGEST.fullmatch(digest):
        raise BlobMissing(f"{digest[:100]!r} is no digest; a digest is 'sha256:' and 64 hex digits")
