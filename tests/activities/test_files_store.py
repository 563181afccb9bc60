"""The store of blobs in a folder, where it promises more than every store does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from activities.stores.base import StoreDown, digest_of
from activities.stores.files import FileStore
from perdure.errors import ConfigError


def files_of(root: Path) -> list[Path]:
    """All files below a folder that are blobs or on the way to be."""
    return [path for path in root.rglob("*") if path.is_file()]


async def test_putting_twice_keeps_one_file(tmp_path: Path) -> None:
    """The same bytes are kept once, in two levels of folders, and are not written again."""
    store = FileStore(tmp_path)
    digest = await store.put(b"same")
    name = digest.removeprefix("sha256:")
    written = (tmp_path / name[:2] / name[2:4] / name).stat().st_ino
    assert await store.put(b"same") == digest
    assert [path.stat().st_ino for path in files_of(tmp_path)] == [written]


async def test_simultaneous_writers_leave_one_file(tmp_path: Path) -> None:
    """Simultaneous writers of one blob leave no temporary file."""
    store = FileStore(tmp_path)
    await asyncio.gather(*(store.put(b"shared" * 10_000) for _ in range(30)))
    assert len(files_of(tmp_path)) == 1


async def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Where the place of a blob cannot be written, the store is down and no temporary file stays."""
    store = FileStore(tmp_path)
    name = digest_of(b"blocked").removeprefix("sha256:")
    (tmp_path / name[:2] / name[2:4] / name / "occupied").mkdir(parents=True)
    with pytest.raises(StoreDown, match=name):
        await store.put(b"blocked")
    assert files_of(tmp_path) == []


async def test_an_unusable_folder_is_told_at_once(tmp_path: Path) -> None:
    """A worker refuses to start where it could not keep large results."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"PERDURE_DATA_DIR: .*file cannot be used"):
        await FileStore(tmp_path / "file" / "blobs").prepare()
