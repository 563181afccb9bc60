"""The store of blobs in a folder: its promises to one and to many processes."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from activities.stores.base import BlobCorrupt, BlobMissing, digest_of
from activities.stores.files import FileStore
from perdure.errors import ConfigError, PerdureError

WRITER = """
import asyncio, sys
from pathlib import Path
from activities.stores.files import FileStore
store = FileStore(Path(sys.argv[1]))
sys.stdin.readline()
for size in range(40):
    asyncio.run(store.put(bytes([size]) * 50_000))
"""


def files_of(root: Path) -> list[Path]:
    """All files below a folder that are blobs or on the way to be."""
    return [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("data", [b"", b"x", b"\x00\xff" * 500_000], ids=["empty", "one", "megabyte"])
async def test_what_was_put_comes_back(tmp_path: Path, data: bytes) -> None:
    """Bytes come back whole under their SHA-256."""
    store = FileStore(tmp_path / "new" / "blobs")
    digest = await store.put(data)
    assert digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert await store.exists(digest)
    assert await store.get(digest) == data


async def test_putting_twice_keeps_one_file(tmp_path: Path) -> None:
    """The same bytes are kept once, in two levels of folders, and are not written again."""
    store = FileStore(tmp_path)
    digest = await store.put(b"same")
    name = digest.removeprefix("sha256:")
    written = (tmp_path / name[:2] / name[2:4] / name).stat().st_ino
    assert await store.put(b"same") == digest
    assert [path.stat().st_ino for path in files_of(tmp_path)] == [written]


@pytest.mark.parametrize(
    "digest",
    [digest_of(b"nowhere"), "", "sha256:", "../../etc/passwd", "sha256:../../../etc/passwd", "sha256:" + "A" * 64],
)
async def test_what_is_not_there_is_named(tmp_path: Path, digest: str) -> None:
    """A digest without a blob, and text that is no digest, are missing; no path outside the store is touched."""
    store = FileStore(tmp_path)
    assert not await store.exists(digest)
    with pytest.raises(BlobMissing) as caught:
        await store.get(digest)
    assert digest in str(caught.value)
    assert isinstance(caught.value, PerdureError)


@pytest.mark.parametrize("damage", [b"", b"value", b"valuE of a run", b"value of a run and more"])
async def test_damage_is_found_and_healed(tmp_path: Path, damage: bytes) -> None:
    """A blob that was cut, changed or lengthened is never returned, and putting the bytes again restores it."""
    store = FileStore(tmp_path)
    digest = await store.put(b"value of a run")
    files_of(tmp_path)[0].write_bytes(damage)
    with pytest.raises(BlobCorrupt, match=digest):
        await store.get(digest)
    await store.put(b"value of a run")
    assert await store.get(digest) == b"value of a run"


async def test_many_tasks_put_the_same_blob(tmp_path: Path) -> None:
    """Simultaneous writers of one blob in one process all succeed and leave no temporary file."""
    store = FileStore(tmp_path)
    digests = await asyncio.gather(*(store.put(b"shared" * 10_000) for _ in range(30)))
    assert set(digests) == {digest_of(b"shared" * 10_000)}
    assert len(files_of(tmp_path)) == 1


def test_many_processes_put_the_same_blobs(tmp_path: Path) -> None:
    """Processes that write the same blobs at the same time all succeed; every blob is whole afterwards."""
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, cwd=root)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    store = FileStore(tmp_path)
    for size in range(40):
        data = bytes([size]) * 50_000
        assert asyncio.run(store.get(digest_of(data))) == data
    assert len(files_of(tmp_path)) == 40


async def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Where the place of a blob cannot be written, the error is raised and no temporary file stays."""
    store = FileStore(tmp_path)
    name = digest_of(b"blocked").removeprefix("sha256:")
    (tmp_path / name[:2] / name[2:4] / name / "occupied").mkdir(parents=True)
    with pytest.raises(OSError, match=name):
        await store.put(b"blocked")
    assert files_of(tmp_path) == []


async def test_an_unusable_folder_is_told_at_once(tmp_path: Path) -> None:
    """A worker refuses to start where it could not keep large results."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"PERDURE_DATA_DIR: .*file cannot be used"):
        await FileStore(tmp_path / "file" / "blobs").prepare()
