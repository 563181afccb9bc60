"""Viewers of a run whose worker or server is lost, or that is reset, rebuild its texts all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure import Client
from perdure.embedded import EmbeddedServer
from tests.chaos.conftest import FakeModel, Stage, call, staged
from tests.chaos.server import Server
from tests.chaos.test_lost_workers import TOLD
from tests.fake_chat import fake_chat
from tests.lab import Run
from tests.viewing import Viewing, recorded

pytestmark = pytest.mark.slow

OLD = [f"old{number} " for number in range(1_000)]
NEW = [f"new{number} " for number in range(1_000)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own."""
    made = Server(tmp_path / "server")
    yield made
    made.close()


@asynccontextmanager
async def speaking(address: str, folder: Path, *answers: Any) -> AsyncIterator[Stage]:
    """A stage whose model streams these answers."""
    async with fake_chat(*answers) as fake:
        model = cast(FakeModel, SimpleNamespace(address=fake.base_url))
        async with staged(address, folder, model) as stage:
            yield stage


@pytest.mark.parametrize("how", ["kill", "terminate"])
async def test_the_worker_is_lost_in_mid_stream(temporal_server: EmbeddedServer, tmp_path: Path, how: str) -> None:
    """The text of the lost attempt is void, and everybody rebuilds the new one's: at once, late, and from a cursor."""
    never = asyncio.Event()
    answers = {"text": OLD, "hold_at": {500: never}}, {"text": NEW, "pause": 0.002}
    async with speaking(temporal_server.address, tmp_path, *answers) as stage:
        first = await stage.serve()
        run = Run(await stage.start(agent="payer"))
        handle = Client(stage.client).handle(run.id)
        early, late, back = Viewing(), Viewing(), Viewing()
        stream = handle.stream()
        await early.until(stream, "text")
        assert "".join(OLD).startswith(early.text)
        async with aclosing(handle.stream()) as broken_off:
            await back.until(broken_off, "text")
        getattr(first, how)()
        await stage.serve()
        back.text = ""
        await asyncio.gather(
            early.follow(stream), back.follow(handle.stream(after=back.cursor)), late.follow(handle.stream())
        )
        never.set()
        assert await recorded(run) == {1: "".join(NEW)} == early.replies == late.replies == back.replies
        assert early.live.count("reset") == 1
        assert "retrying" in early.live


async def test_the_server_is_lost_in_mid_stream(server: Server, tmp_path: Path) -> None:
    """That it does not answer is told; the stream goes on when it does again, and nothing is shown twice."""
    middle = asyncio.Event()
    async with speaking(server.address, tmp_path, {"text": NEW, "hold_at": {500: middle}}) as stage:
        await stage.serve()
        run = Run(await stage.start(agent="payer"))
        seen = Viewing()
        stream = Client(stage.client).handle(run.id).stream()
        await seen.until(stream, "text")
        server.kill()
        await seen.until(stream, "silent")
        server.restart()
        middle.set()
        await seen.follow(stream)
        assert seen.replies == await recorded(run) == {1: "".join(NEW)}


async def test_a_run_that_is_reset(stage: Stage) -> None:
    """What the reset has thrown away is told by its number, and the run is told again from there."""
    await stage.serve()
    started = await stage.start(call("pay_approved", to="bob", amount=1), TOLD)
    run = Run(stage.client.get_workflow_handle(started.id))
    handle = Client(stage.client).handle(run.id)
    seen = Viewing()
    stream = handle.stream()
    await seen.until(stream, "approval_requested")
    cursor = seen.cursor
    await stage.reset(started, await stage.decided_before(started, "call_model"))
    await seen.until(stream, "rewound")
    assert seen.cursor == cursor
    await seen.until(stream, "approval_requested")
    await handle.approve()
    await seen.follow(stream)
    assert seen.replies == await recorded(run)
    assert seen.types.count("reply") == 3
    assert seen.types[-1] == "run_ended"
