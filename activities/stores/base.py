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


class BlobStore(Protocol):
    """Keeps bytes under a digest `"sha256:<64 hex digits>"`; several processes may use one store at once."""

    async def put(self, data: bytes) -> str:
        """Keep `data` durably and return its digest; the same bytes again cost nothing."""
        ...

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest, verified; raises BlobMissing or BlobCorrupt."""
        ...

    async def exists(self, digest: str) -> bool:
        """Whether there is a blob under this digest; what is no digest has none."""
        ...


def digest_of(data: bytes) -> str:
    """The digest under which a store keeps `data`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
