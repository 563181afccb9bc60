"""Cases J: sizes. Nothing that is said, called, returned or raised is too large, and history grows with what is new."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.service import RPCError

import perdure
from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure import Agent, Limits, Notification, tool
from perdure.embedded import EmbeddedServer
from perdure.testing import call, calls, reply, scripted
from tests.conftest import Serve
from tests.fake_chat import fake_chat
from tests.lab import Run, eventually, laboratory

MANY = Limits(tokens=1_000_000_000, steps=200, tool_calls=500)
PAYLOAD = 2 * 1024 * 1024
"""Bytes that the server takes in one payload."""


@tool(effect="read", max_result_chars=4_000_000)
def fetch(size: int, mark: str = "") -> str:
    """A text of that many characters."""
    return "y" * size + mark


@tool(effect="write")
def measure(text: str) -> str:
    """The length of a text."""
    return str(len(text))


@tool(effect="write", approval=True)
def store_text(text: str) -> str:
    """Store a text."""
    return f"stored {len(text)}"


async def failed_tasks(run: Run) -> int:
    """How many workflow tasks of the run have failed."""
    events = (await run.handle.fetch_history()).events
    return sum(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED for event in events)


async def bytes_of(run: Run) -> int:
    """The size of the run's history; no workflow task of it has failed."""
    assert await failed_tasks(run) == 0
    return sum(event.ByteSize() for event in (await run.handle.fetch_history()).events)


# --- 142: one direction guarded ---------------------------------------------------------------------------------------


async def test_three_large_results_reach_the_next_model_call(serve: Serve) -> None:
    """Three results of 900 KB in one run: the model gets them whole, and history holds references."""
    answers: list[Any] = [{"calls": [call("fetch", size=900_000, mark=str(n)) for n in range(3)]}, {"text": "ok"}]
    async with fake_chat(*answers) as server:
        agent = Agent("reader", server.model(), tools=[fetch], limits=MANY)
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "ok"
        sent = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert sent == [f"{'y' * 900_000}{n}" for n in range(3)]
    assert await bytes_of(run) < 60_000


async def test_a_large_prompt_reaches_the_model(serve: Serve) -> None:
    """A prompt of 2.5 MB is sent whole; memo, status and search show little of it."""
    async with fake_chat({"text": "ok"}) as server:
        agent = Agent("reader", server.model(), limits=MANY)
        lab = await serve(agent)
        run = await lab.start(agent, "p" * 2_500_000)
        assert (await run.result())["output"] == "ok"
        assert server.requests[0]["messages"][-1]["content"] == "p" * 2_500_000
    assert await bytes_of(run) < 60_000
    described = await run.handle.describe()
    assert len(json.dumps(await described.memo())) < 1_000
    assert len(json.dumps(await run.status())) < 5_000


async def test_a_large_prompt_in_a_script(tmp_path: Path) -> None:
    """A prompt of 3 MB works without any server of one's own too, and so does a result of that size."""
    script = [calls("measure", text="{{user}}"), calls("fetch", size=3_000_000), reply("{{tool:c1}}")]
    agent = Agent("script", scripted(*script), tools=[measure, fetch], limits=MANY)
    found: list[str] = []

    def work() -> None:
        with perdure.local(data_dir=tmp_path) as p:
            found.append(p.run(agent, "p" * 3_000_000).output)

    thread = threading.Thread(target=work)
    thread.start()
    await eventually(lambda: not thread.is_alive(), 60)
    assert found == ["3000000"]


async def test_large_messages_and_queries_harm_nothing(temporal_server: EmbeddedServer, serve: Serve) -> None:
    """2.5 MB as signal, update or query argument: taken and refused, or refused by the server; the run goes on."""
    agent = Agent("asks", scripted(calls("store_text", text="t"), reply("ok")), tools=[store_text], limits=MANY)
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.asks()
    large = {"text": "s" * 2_500_000}
    await run.send("say", large)
    [refused] = await run.seen("message_refused")
    assert refused["reason"] == "text: String should have at most 200000 characters"
    with pytest.raises(WorkflowUpdateFailedError):
        await run.update("say", large)
    plain = Run((await Client.connect(temporal_server.address)).get_workflow_handle(run.id))
    with pytest.raises(RPCError):
        await plain.send("say", large)
    with pytest.raises(WorkflowQueryFailedError, match="size exceeds limit"):
        await plain.handle.query("events", large)
    assert (await run.handle.query("events", large))["last"] > 0
    await run.update("approve", {})
    assert (await run.result())["output"] == "ok"
    assert await bytes_of(run) < 60_000


async def test_refusals_are_short(serve: Serve) -> None:
    """What is wrong with a message is told in a few words, however much is wrong."""
    agent = Agent("asks", scripted(calls("store_text", text="t"), reply("ok")), tools=[store_text], limits=MANY)
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.asks()
    for wrong in ({"f" * 50_000: 1}, {f"field{n}": n for n in range(3_000)}, {"call_id": "c" * 900}):
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await run.update("approve", wrong)
        assert len(str(caught.value.cause)) < 5_000
        await run.send("approve", wrong)
    events = await run.seen("message_refused", 3)
    assert all(len(event["reason"]) <= 1_000 for event in events)
    ended = await lab.run(agent, **{"x" * 50_000: 1})
    assert ended["outcome"] == "invalid_input"
    assert len(ended["message"]) < 5_000


@pytest.mark.parametrize("size", [2_500_000])
async def test_a_large_final_result(serve: Serve, size: int) -> None:
    """An answer of 2.5 MB is cut in the result, and whole in the conversation by reference."""
    agent = Agent("long", scripted(calls("fetch", size=size), reply("{{last_tool_text}}")), tools=[fetch], limits=MANY)
    lab = await serve(agent)
    run = await lab.start(agent)
    result = await run.result()
    assert result["outcome"] == "success"
    assert len(json.dumps(result)) < 450_000
    assert (await run.messages())[-1]["parts"][0]["size"] == size


# --- 143: history grows with the square of the turns ------------------------------------------------------------------


@pytest.mark.timeout(300)
async def test_history_grows_with_what_is_new(temporal_server: EmbeddedServer, serve: Serve) -> None:
    """A conversation of 400 KB and 100 calls of 5 KB in one turn: history has each once, early and late alike."""
    said = [{"role": "user", "content": f"{n} {'w' * 4_000}"} for n in range(100)]
    marks = ["".join("abcdefghij"[int(digit)] for digit in str(n)) for n in range(100)]
    script = [*(calls("fetch", size=5_000, mark=mark) for mark in marks), reply("ok")]
    agent = Agent("worker", scripted(*script), tools=[fetch], limits=MANY)
    lab = await serve(agent)
    plain = await Client.connect(temporal_server.address)
    begun = await plain.start_workflow(
        "AgentWorkflow", {"agent": "worker", "messages": said}, id="j143", task_queue=lab.queue
    )
    run = Run(begun)
    assert (await run.result())["output"] == "ok"
    events = (await run.handle.fetch_history()).events
    scheduled = [e.event_id for e in events if e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED]
    sizes = [event.ByteSize() for event in events]
    early, late = sum(sizes[scheduled[20] : scheduled[60]]), sum(sizes[scheduled[140] : scheduled[180]])
    assert late < early * 1.05
    assert sum(sizes) < 2_000_000


# --- 145: the carried state is too big --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that suggests to continue as new after 60 events."""
    settings = {"limit.historyCount.suggestContinueAsNew": "60"}
    with EmbeddedServer(tmp_path_factory.mktemp("impatient"), headless=True, dynamic_config=settings) as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [60_000, 100_000])
async def test_a_large_state_is_carried(
    impatient_server: EmbeddedServer, store: FileStore, data_dir: Path, size: int
) -> None:
    """3 MB of conversation and 50 calls that wait with 100 KB each go on in a new run, and nothing of them is lost."""
    waiting = [call("store_text", text=f"{number:02}{'a' * size}") for number in range(50)]
    client = await Client.connect(impatient_server.address, data_converter=data_converter(store))
    async with fake_chat({"calls": waiting}, {"text": "ok"}) as server:
        agent = Agent("keeps", server.model(), tools=[store_text], limits=MANY)
        async with laboratory(client, data_dir, agent) as lab:
            run = await lab.start(agent, "p" * 3_000_000)
            before = {pending["call_id"]: pending["digest"] for pending in await run.asks(50)}
            for number in range(60):
                await run.send("say", {"text": f"said {number}"})
            await run.seen("continued")
            status = await run.status()
            assert {pending["call_id"]: pending["digest"] for pending in status["pending"]} == before
            assert len(json.dumps(status)) < PAYLOAD
        async with laboratory(client, data_dir, agent, queue=lab.queue):  # a worker that knows nothing of it
            for call_id, digest in before.items():
                await run.update("approve", {"call_id": call_id, "digest": digest})
            assert (await run.result())["output"] == "ok"
        sent = server.requests[-1]["messages"]
    assert sent[0]["content"] == "p" * 3_000_000
    assert [m["content"] for m in sent if m["role"] == "tool"] == [f"stored {size + 2}"] * 50
    asked = [json.loads(c["function"]["arguments"])["text"] for c in sent[1]["tool_calls"]]
    assert asked == [f"{number:02}{'a' * size}" for number in range(50)]


async def test_a_large_state_waits_for_its_store(impatient_server: EmbeddedServer, tmp_path: Path) -> None:
    """Where the store is away when the run would go on in a new one, it waits, and loses nothing."""
    folder, away = tmp_path / "blobs", tmp_path / "away"
    client = await Client.connect(impatient_server.address, data_converter=data_converter(FileStore(folder)))
    waiting = [call("store_text", text=f"{number}{'a' * 100_000}") for number in range(5)]
    async with fake_chat({"calls": waiting}, {"text": "ok"}) as server:
        agent = Agent("keeps", server.model(), tools=[store_text], limits=MANY)
        async with laboratory(client, tmp_path, agent) as lab:
            run = await lab.start(agent, "p" * 3_000_000)
            await run.asks(5)
            folder.rename(away)
            folder.touch()
            for number in range(60):
                await run.send("say", {"text": f"said {number}"})
            await eventually(lambda: failed_tasks(run))
            folder.unlink()
            away.rename(folder)
            await run.seen("continued")
            for pending in await run.pending():
                await run.update("approve", {"call_id": pending["call_id"]})
            assert (await run.result())["output"] == "ok"
        sent = server.requests[-1]["messages"]
    assert sent[0]["content"] == "p" * 3_000_000
    assert [m["content"] for m in sent if m["role"] == "tool"] == ["stored 100001"] * 5
    assert sent[-1]["content"].split("\n\n") == [f"said {number}" for number in range(60)]


@pytest.mark.parametrize("size", [60_000, 100_000])
async def test_many_waiting_calls_fit_a_query(serve: Serve, size: int) -> None:
    """`status` and `approvals` stay below what the server takes, and show of each call its beginning and its size."""
    waiting = [call("store_text", text=f"{number:02}{'{{tool:c1}}'}") for number in range(50)]
    agent = Agent("many", scripted(calls("fetch", size=size), calls(*waiting), reply("ok")), tools=[fetch, store_text],
                  limits=MANY)  # fmt: skip
    lab = await serve(agent)
    run = await lab.start(agent)
    pending = await run.asks(50)
    assert len(json.dumps(await run.status())) < PAYLOAD
    for number, one in enumerate(pending):
        assert one["arguments"]["text"].startswith(f"{number:02}yyy")
        assert one["whole"]["size"] == size + 2 + len('{"text":""}')
    await run.send("stop", {"reason": "r" * 2_000})
    assert (await run.ended())["outcome"] == "no_solution"


# --- 147: errors of any size and kind ---------------------------------------------------------------------------------


class Unprintable(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unpicklable(Exception):
    """It cannot be pickled, nor made again from its arguments."""

    def __init__(self, first: str, *, second: object) -> None:
        super().__init__(first)
        self.second = second

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle")


def chained() -> Exception:
    """An exception with 200 causes, each with a long text."""
    error = ValueError("0")
    for number in range(200):
        try:
            raise ValueError(f"{number} {'c' * 10_000}") from error
        except ValueError as caught:
            error = caught
    return error


ERRORS: dict[str, Any] = {
    "large": (lambda: ValueError("E" * 5_000_000), "ValueError: EEEE"),
    "chain": (chained, "ValueError: 199 cccc"),
    "unprintable": (Unprintable, "Unprintable: (its message cannot be shown)"),
    "unpicklable": (lambda: Unpicklable("no", second=lambda: None), "Unpicklable: no"),
}


@pytest.mark.parametrize("effect", ["read", "write"])
@pytest.mark.parametrize("kind", ERRORS)
async def test_an_error_of_any_kind_is_a_short_result(serve: Serve, kind: str, effect: Any) -> None:
    """The tool runs once, and the model gets a few KB about what it raised."""
    make, shown = ERRORS[kind]
    ran: list[int] = []

    @tool(effect=effect)
    def fail() -> str:
        ran.append(1)
        raise make()

    agent = Agent("fails", scripted(calls("fail"), reply("{{tool:c1}}")), tools=[fail], limits=MANY)
    lab = await serve(agent)
    run = await lab.start(agent)
    output = (await run.result())["output"]
    assert output.startswith(shown)
    assert len(output) < 3_000
    assert ran == [1]
    assert await bytes_of(run) < 60_000


@pytest.mark.parametrize("kind", ERRORS)
async def test_an_error_beside_the_tools_is_short_too(serve: Serve, kind: str) -> None:
    """What instructions and notices raise arrives, so that the run ends or goes on at once."""
    make, shown = ERRORS[kind]
    told: list[str] = []

    def instruct() -> str:
        raise make()

    def tell(notice: Notification) -> None:
        told.append(notice.kind)
        raise make()

    broken = Agent("broken", scripted(reply("ok")), instructions=instruct)
    silent = Agent("silent", scripted(calls("store_text", text="t"), reply("ok")), tools=[store_text], notify=tell)
    lab = await serve(broken, silent)
    ended = await lab.run(broken)
    assert ended["outcome"] == "invalid_input"
    assert len(ended["message"]) < 5_000
    assert kind == "unprintable" or shown in ended["message"]
    run = await lab.start(silent)
    await run.asks()
    await run.seen("notify_failed")
    await run.update("approve", {})
    assert (await run.result())["output"] == "ok"
    assert await bytes_of(run) < 60_000


@pytest.mark.parametrize("status", [400, 500])
async def test_a_large_error_of_a_provider_is_short(serve: Serve, status: int) -> None:
    """An error body of 3 MB ends in a few words: a refused request at once, a broken server after its attempts."""
    wrong = {"status": status, "body": {"error": {"message": "B" * 3_000_000}}}
    async with fake_chat(*([wrong] if status == 400 else [wrong, {"text": "ok"}])) as server:
        agent = Agent("asks", server.model(), limits=MANY)
        lab = await serve(agent)
        run = await lab.start(agent)
        ended = await run.ended()
        assert len(server.requests) == (1 if status == 400 else 2)
    assert ended["outcome"] == ("failed" if status == 400 else "success")
    assert len(json.dumps(ended)) < 10_000
    assert await bytes_of(run) < 60_000


# --- 148: many large commands at once ---------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, str]:
    """The texts of the files in a folder."""
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("effect", ["write", "idempotent"])
async def test_many_large_calls_in_one_reply(serve: Serve, tmp_path: Path, effect: Any) -> None:
    """40 calls of 150 KB each in one reply, one after the other or side by side: each file is right."""

    @tool(effect=effect)
    def write_file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return f"{len(text)} written"

    texts = {f"f{number}": f"{number:02}{'t' * 150_000}" for number in range(40)}
    together = [call("write_file", name=name, text=text) for name, text in texts.items()]
    async with fake_chat({"calls": together}, {"text": "ok"}) as server:
        agent = Agent("writes", server.model(), tools=[write_file], limits=MANY)
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "ok"
    assert list((await run.results()).values()) == ["150002 written"] * 40
    assert contents(tmp_path) == texts
    assert await bytes_of(run) < 600_000


async def test_many_large_results_of_one_reply(serve: Serve) -> None:
    """40 calls side by side with a result of 1 MB each: the model gets them all."""
    together = [call("fetch", size=1_000_000, mark=str(number)) for number in range(40)]
    async with fake_chat({"calls": together}, {"text": "ok"}) as server:
        agent = Agent("reads", server.model(), tools=[fetch], limits=MANY)
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "ok"
        sent = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert [text[1_000_000:] for text in sent] == [str(number) for number in range(40)]
    assert await bytes_of(run) < 600_000


@pytest.mark.slow
async def test_thousands_of_small_calls_in_one_reply(serve: Serve) -> None:
    """Of 3,000 calls in one reply 128 run, and each of the others gets an error; the next call has them all paired."""
    together = [call("measure", text=f"text {number}") for number in range(3_000)]
    async with fake_chat({"calls": together}, {"text": "ok"}) as server:
        agent = Agent("eager", server.model(), tools=[measure], limits=MANY)
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "ok"
        sent = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert sent[:128] == [str(len(f"text {number}")) for number in range(128)]
    assert set(sent[128:]) == {"not executed: at most 128 calls in one reply"}
    assert len(sent) == 3_000
    assert await bytes_of(run) < 3_000_000
