"""What every store of blobs promises, in a folder and in a bucket of a server that speaks the protocol of S3."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from activities.stores.base import BlobCorrupt, BlobMissing, BlobStore, StoreDown, digest_of
from activities.stores.choice import choose_store
from activities.stores.files import FileStore
from activities.stores.s3 import S3Store
from perdure.errors import ConfigError, PerdureError
from perdure.worker_settings import WorkerSettings
from tests.activities.s3_server import BUCKET, S3Server

WRITER = """
import asyncio, os, sys
from activities.stores.choice import choose_store
from perdure.worker_settings import WorkerSettings
store = choose_store(WorkerSettings.parse(os.environ), os.environ)
sys.stdin.readline()
for size in range(20):
    asyncio.run(store.put(bytes([size]) * 50_000))
os._exit(0)  # as workers leave: the client's threads may abort a process that ends while they do
"""


@dataclass
class Place:
    """A store and ways around it."""

    environment: dict[str, str]
    damage: Callable[[str, bytes], None]

    def open(self) -> BlobStore:
        """The store, as a process with this environment has it."""
        return choose_store(WorkerSettings.parse(self.environment), self.environment)


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with an empty bucket."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind of store."""
    if request.param == "folder":

        def write(key: str, data: bytes) -> None:
            (tmp_path / "blobs" / key).write_bytes(data)

        return Place({"PERDURE_DATA_DIR": str(tmp_path)}, write)
    server: S3Server = request.getfixturevalue("s3_server")
    return Place(server.environment, lambda key, data: server.overwrite(f"a/b/{key}", data))


def key_of(digest: str) -> str:
    """Where a blob lies below the root of its store."""
    name = digest.removeprefix("sha256:")
    return f"{name[:2]}/{name[2:4]}/{name}"


@pytest.mark.parametrize("data", [b"", b"x", b"\x00\xff" * 5_000_000], ids=["empty", "one", "ten megabytes"])
async def test_what_was_put_comes_back(place: Place, data: bytes) -> None:
    """Bytes come back whole under their SHA-256, also through another store object, and putting twice is the same."""
    store = place.open()
    digest = await store.put(data)
    assert digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert await store.put(data) == digest
    assert await store.exists(digest)
    assert await place.open().get(digest) == data


@pytest.mark.parametrize(
    "digest",
    [digest_of(b"nowhere"), "", "sha256:", "../../etc/passwd", "sha256:../../../etc/passwd", "sha256:" + "A" * 64],
)
async def test_what_is_not_there_is_named(place: Place, digest: str) -> None:
    """A digest without a blob, and text that is no digest, are missing, and can be deleted all the same."""
    store = place.open()
    await store.prepare()
    assert not await store.exists(digest)
    with pytest.raises(BlobMissing) as caught:
        await store.get(digest)
    assert digest in str(caught.value)
    await store.delete(digest)


@pytest.mark.parametrize("damage", [b"", b"value", b"valuE of a run", b"value of a run and more"])
async def test_damage_is_found_and_healed(place: Place, damage: bytes) -> None:
    """A blob that was cut, changed or lengthened is never returned, and putting the bytes again restores it."""
    store = place.open()
    digest = await store.put(b"value of a run")
    place.damage(key_of(digest), damage)
    with pytest.raises(BlobCorrupt, match=digest):
        await store.get(digest)
    await store.put(b"value of a run")
    assert await store.get(digest) == b"value of a run"


async def test_a_deleted_blob_is_gone(place: Place) -> None:
    """Deleting removes one blob and no other; it can be put again."""
    store = place.open()
    gone, kept = await store.put(b"gone"), await store.put(b"kept")
    await store.delete(gone)
    assert not await store.exists(gone)
    with pytest.raises(BlobMissing):
        await store.get(gone)
    assert await store.get(kept) == b"kept"
    assert await store.put(b"gone") == gone
    assert await store.get(gone) == b"gone"


async def test_many_tasks_put_the_same_blob(place: Place) -> None:
    """Simultaneous writers of one blob in one process all succeed."""
    store = place.open()
    digests = await asyncio.gather(*(store.put(b"shared" * 10_000) for _ in range(30)))
    assert set(digests) == {digest_of(b"shared" * 10_000)}
    assert await store.get(digests[0]) == b"shared" * 10_000


def test_many_processes_put_the_same_blobs(place: Place) -> None:
    """Processes that write the same blobs at the same time all succeed; every blob is whole afterwards."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **place.environment},
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    store = place.open()
    for size in range(20):
        assert asyncio.run(store.get(digest_of(bytes([size]) * 50_000))) == bytes([size]) * 50_000


async def test_a_store_that_works_is_ready(place: Place) -> None:
    """Preparing says nothing where the store can be used."""
    await place.open().prepare()


# --- the folder -------------------------------------------------------------------------------------------------------


async def test_a_folder_that_fails_is_told(tmp_path: Path) -> None:
    """An operating system's error is a store that is down, with the folder's name."""
    (tmp_path / "blobs").write_text("no folder")
    store = FileStore(tmp_path / "blobs")
    for asked in (store.put(b"x"), store.get(digest_of(b"x"))):
        with pytest.raises(StoreDown, match=str(tmp_path)):
            await asked
    with pytest.raises(ConfigError, match="PERDURE_DATA_DIR"):
        await store.prepare()


# --- the bucket -------------------------------------------------------------------------------------------------------


async def _asked(store: BlobStore) -> list[PerdureError]:
    """What each method raises."""
    raised: list[PerdureError] = []
    digest = digest_of(b"x")
    for asked in (store.put(b"x"), store.get(digest), store.exists(digest), store.delete(digest)):
        with pytest.raises(StoreDown) as caught:
            await asked
        raised.append(caught.value)
    return raised


async def test_a_missing_bucket_is_no_missing_blob(s3_server: S3Server) -> None:
    """A bucket that does not exist is told by its name and endpoint, by each method."""
    store = S3Store("s3://elsewhere", s3_server.environment)
    for error in await _asked(store):
        assert f"there is no bucket 'elsewhere' at 127.0.0.1:{s3_server.port}" in str(error)
    with pytest.raises(ConfigError, match=r"PERDURE_BLOB_STORE: there is no bucket 'elsewhere'"):
        await store.prepare()


async def test_a_server_that_is_down_is_told_and_comes_back(tmp_path: Path) -> None:
    """While the server is away every method says so, and the same store works once it is back."""
    server = S3Server(tmp_path)
    store = choose_store(WorkerSettings.parse(server.environment), server.environment)
    for error in await _asked(store):
        assert f"bucket '{BUCKET}' at 127.0.0.1:{server.port} cannot be used" in str(error)
        assert server.environment["AWS_ACCESS_KEY_ID"] not in str(error)
    with server:
        digest = await store.put(b"back")
        assert await store.get(digest) == b"back"


async def test_wrong_keys_are_refused_without_being_told(tmp_path: Path) -> None:
    """Keys that the server does not know are told as such, without the keys."""
    with S3Server(tmp_path, checks_keys=True) as server:
        store = choose_store(WorkerSettings.parse(server.environment), server.environment)
        for error in await _asked(store):
            assert f"bucket '{BUCKET}' at 127.0.0.1:{server.port} refuses the AWS keys: InvalidAccessKeyId" in str(
                error
            )
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                assert server.environment[name] not in str(error)


@pytest.mark.parametrize("location", ["bucket", "s3://", "s3://B", "file:///tmp", "s3://bucket?x=1", "https://host/b"])
def test_what_is_no_location_is_refused(location: str) -> None:
    """What is no bucket is refused with the variable's name."""
    with pytest.raises(ConfigError, match="PERDURE_BLOB_STORE: must be s3://bucket"):
        S3Store(location, {})


def test_plain_http_is_for_loopback() -> None:
    """Values do not go unencrypted to another host, unless that is asked for."""
    given = {"AWS_ENDPOINT_URL": "http://store.example:9000", "AWS_REGION": "us-east-1"}
    with pytest.raises(ConfigError, match=r"AWS_ENDPOINT_URL: store\.example:9000 would be reached without encryption"):
        S3Store("s3://bucket", given)
    S3Store("s3://bucket", {**given, "AWS_ALLOW_HTTP": "true"})


def test_without_the_extra_it_is_named(tmp_path: Path) -> None:
    """Where the library is not installed, the message says what to install."""
    (tmp_path / "obstore").mkdir()
    (tmp_path / "obstore" / "__init__.py").write_text("raise ImportError('not installed')")
    script = "from activities.stores.s3 import S3Store\nS3Store('s3://bucket', {})"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
    )
    assert "pip install 'perdure[s3]'" in done.stderr
