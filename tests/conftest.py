"""Shared by all tests: one real Temporal server a test process, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from temporalio.client import Client

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server on free ports with its data in a temporary folder."""
    with EmbeddedServer(tmp_path_factory.mktemp("temporal"), headless=True) as server:
        yield server


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    """The store of large payloads that clients and workers share."""
    return FileStore(tmp_path_factory.mktemp("blobs"))


@pytest.fixture
async def client(temporal_server: EmbeddedServer, store: FileStore) -> Client:
    """A client with Perdure's data converter."""
    return await Client.connect(temporal_server.address, data_converter=data_converter(store))
