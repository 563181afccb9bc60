"""A store of blobs in a folder, for one host or a shared file system."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from activities.stores.base import DIGEST, BlobMissing, StoreDown, check, digest_of, verify
from perdure.errors import ConfigError, PerdureError

T = TypeVar("T")


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
        except PerdureError as error:
            raise ConfigError(f"PERDURE_DATA_DIR: {self.root.parent} cannot be used: {error}") from None

    async def put(self, data: bytes) -> str:
        """Keep `data` durably and return its digest; a damaged copy already there is replaced. Raises StoreDown."""
        return await self._do(lambda: self._write(data))

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest, verified; raises BlobMissing, BlobCorrupt, StoreDown."""
        check(digest)
        return await self._do(lambda: self._read(digest))

    async def exists(self, digest: str) -> bool:
        """Whether there is a blob under this digest."""
        return DIGEST.fullmatch(digest) is not None and await self._do(self._path(digest).is_file)

    async def delete(self, digest: str) -> None:
        """Remove a blob, if there is one; raises StoreDown."""
        if DIGEST.fullmatch(digest):
            await self._do(lambda: self._path(digest).unlink(missing_ok=True))

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise StoreDown(f"{self.root}: {error}") from None

    def _path(self, digest: str) -> Path:
        name = digest.removeprefix("sha256:")
        return self.root / name[:2] / name[2:4] / name

    def _read(self, digest: str) -> bytes:
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            if not self.root.is_dir():
                raise StoreDown(f"there is no folder {self.root}; is its file system mounted?") from None
            raise BlobMissing(
                f"{digest} is not in {self.root}; every worker needs the store that the run's other workers write to"
            ) from None
        return verify(digest, data, str(path))

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
