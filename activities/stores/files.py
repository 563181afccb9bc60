"""A store of blobs in a folder, for one host or a shared file system."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from activities.stores.base import DIGEST, BlobCorrupt, BlobMissing, digest_of
from perdure.errors import ConfigError, PerdureError


class FileStore:
    """Keeps each blob in one file `ab/cd/<hex>` below `root`, which is created private to its owner.

    A blob is written beside its place, synced and renamed, so that no process ever sees half of one; reading verifies.
    All workers of a task queue need the same folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    async def prepare(self) -> None:
        """Write and read one small blob, so that a folder that cannot be used is told at once; raises ConfigError."""
        try:
            await self.get(await self.put(b"perdure"))
        except (OSError, PerdureError) as error:
            raise ConfigError(f"PERDURE_DATA_DIR: {self.root.parent} cannot be used: {error}") from None

    async def put(self, data: bytes) -> str:
        """Keep `data` durably and return its digest; a damaged copy already there is replaced."""
        return await asyncio.to_thread(self._write, data)

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest, verified; raises BlobMissing or BlobCorrupt."""
        return await asyncio.to_thread(self._read, digest)

    async def exists(self, digest: str) -> bool:
        """Whether there is a blob under this digest."""
        return DIGEST.fullmatch(digest) is not None and await asyncio.to_thread(self._path(digest).is_file)

    def _path(self, digest: str) -> Path:
        name = digest.removeprefix("sha256:")
        return self.root / name[:2] / name[2:4] / name

    def _read(self, digest: str) -> bytes:
        if not DIGEST.fullmatch(digest):
            raise BlobMissing(f"{digest[:100]!r} is no digest; a digest is 'sha256:' and 64 hex digits")
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise BlobMissing(
                f"{digest} is not in {self.root}; every worker needs the store that the run's other workers write to"
            ) from None
        if digest_of(data) != digest:
            raise BlobCorrupt(f"{path} does not hold the bytes of {digest}; restore this file from a backup")
        return data

    def _write(self, data: bytes) -> str:
        digest = digest_of(data)
        path = self._path(digest)
        if path.is_file() and path.read_bytes() == data:
            return digest
        self._make_folders(path.parent)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _sync(path.parent)
        return digest

    def _make_folders(self, shard: Path) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (shard.parent, shard):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                _sync(folder.parent)


def _sync(folder: Path) -> None:
    """A rename outlives a power failure only once its folder is synced; elsewhere than on POSIX folders cannot be."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
