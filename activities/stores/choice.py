"""Which store of blobs a process uses: one line of its environment decides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from activities.stores.base import BlobStore
from activities.stores.files import FileStore
from activities.stores.s3 import S3Store
from perdure.worker_settings import WorkerSettings


def choose_store(settings: WorkerSettings, environment: Mapping[str, str]) -> BlobStore:
    """The store of `PERDURE_BLOB_STORE`, else the folder `blobs` of `PERDURE_DATA_DIR`. Raises ConfigError."""
    if settings.blob_store is not None:
        return S3Store(settings.blob_store, environment)
    return FileStore(Path(settings.data_dir) / "blobs")
