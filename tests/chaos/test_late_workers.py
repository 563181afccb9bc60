"""A worker that stands still or is cut off, and comes back: its late results are nobody's."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from perdure.embedded import EmbeddedServer
from tests.chaos.conftest import Stage, call
from tests.chaos.test_lost_workers import TOLD
from tests.processes import eventually

pytestmark = pytest.mark.slow


class Cable:
    """The way to the server, which can be cut: a cut closes what is open and lets nothing new through."""

    def __init__(self, address: str) -> None:
        self._host, port = address.rsplit(":", 1)
        self._port = int(port)
        self._open: set[asyncio.StreamWriter] = set()
        self._cut = False
        self.address = ""

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Nothing passes from now on."""
        self._cut = True
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    def mend(self) -> None:
        """New connections pass again."""
        self._cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._open |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()


@pytest.fixture
async def cable(temporal_server: EmbeddedServer) -> AsyncIterator[Cable]:
    """A cable to the shared server."""
    async with Cable(temporal_server.address) as made:
        yield made


async def test_a_late_read_is_not_what_the_run_knows(stage: Stage, cable: Cable) -> None:
    """Of two attempts only the recorded one is in the conversation, even on the worker that made the other."""
    first = await stage.serve(cable.address)
    handle = await stage.start(
        call("look", name="it", gate="g"), call("look", name="more", gate="h"), {"text": "{{tool:c1}}"}
    )
    await stage.begun(tool="look")
    second = await stage.serve()
    cable.cut()
    await stage.begun(2, name="it")
    stage.open("g")
    await stage.begun(name="more")
    await stage.begun(2, phase="end", name="it")
    cable.mend()
    second.kill()
    stage.open("h")
    assert await stage.output(handle) == "it seen in attempt 2"
    assert first.alive


async def test_a_late_model_reply_never_shows(stage: Stage, cable: Cable) -> None:
    """A model call of a worker that was cut off is made again; the late reply's call does not run and is never seen."""
    stage.model.replies.extend(
        [call("pay", to="late", amount=1), call("pay", to="recorded", amount=2, gate="g"), {"text": "end"}]
    )
    hold = stage.model.held(1)
    first = await stage.serve(cable.address)
    handle = await stage.start(agent="payer")

    async def asked() -> bool:
        return len(stage.model.requests) == 1

    await eventually(asked, "the first request at the model")
    cable.cut()
    second = await stage.serve()
    await stage.begun(tool="pay", within=80)  # after the heartbeat timeout of model calls
    hold.set()
    await stage.begun(1, tool="pay")
    cable.mend()
    second.terminate()
    stage.open("g")
    assert await asyncio.to_thread(second.wait, 30) == 0
    assert await stage.output(handle) == "end"
    assert first.alive
    assert [line["to"] for line in stage.ledger()] == ["recorded"]
    assert len(stage.model.requests) == 3
    assert "late" not in str(stage.model.requests[-1])
    assert "late" not in str(await handle.query("conversation"))
    assert (await handle.query("usage"))["steps"] == 2


async def test_a_write_whose_worker_stands_still_is_unknown_and_stays_so(stage: Stage) -> None:
    """A write whose worker stands still past its heartbeat is unknown, and its late result changes nothing."""
    first = await stage.serve()
    handle = await stage.start(call("pay", to="bob", amount=1, gate="g"), TOLD)
    await stage.begun(tool="pay")
    first.send(signal.SIGSTOP)
    await stage.serve()
    assert "outcome unknown: its worker was lost" in await stage.output(handle, within=90)
    first.send(signal.SIGCONT)
    stage.open("g")
    first.terminate()
    assert await asyncio.to_thread(first.wait, 40) == 0
    assert len(stage.ledger(tool="pay")) == 1
    assert "outcome unknown" in (await stage.result(handle))["output"]
