"""Shared by all tests: one real Temporal server a test process, a client of it, and workers for agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure import Agent
from perdure.embedded import EmbeddedServer
from tests.lab import Lab, eventually, laboratory, skipping_time

__all__ = ["eventually"]

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

Serve = Callable[..., Awaitable[Lab]]


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server on free ports with its data in a temporary folder."""
    with EmbeddedServer(tmp_path_factory.mktemp("temporal"), headless=True) as server:
        yield server


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the embedded stores."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def store(data_dir: Path) -> FileStore:
    """The store of large payloads that clients and workers share."""
    return FileStore(data_dir / "blobs")


@pytest.fixture
async def client(temporal_server: EmbeddedServer, store: FileStore) -> Client:
    """A client with Perdure's data converter."""
    return await Client.connect(temporal_server.address, data_converter=data_converter(store))


@pytest.fixture
async def skipping(store: FileStore) -> AsyncIterator[WorkflowEnvironment]:
    """A server on which time passes when a test says so."""
    async with skipping_time(store) as environment:
        with environment.auto_time_skipping_disabled():
            yield environment


@pytest.fixture
async def serve(client: Client, data_dir: Path) -> AsyncIterator[Serve]:
    """A function that serves agents until the test ends, with the options of `tests.lab.laboratory`."""
    async with AsyncExitStack() as stack:

        async def start(*agents: Agent, **options: Any) -> Lab:
            return await stack.enter_async_context(laboratory(client, data_dir, *agents, **options))

        yield start
