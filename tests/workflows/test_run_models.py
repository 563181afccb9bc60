"""Runs whose agent has several models: who is asked when, who answers, and what it costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from decimal import Decimal
from pathlib import Path
from socket import socket
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient

from perdure import Agent, Client, Limits, Model, Price, tool
from perdure.embedded import EmbeddedServer
from perdure.testing import call
from tests.conftest import Serve
from tests.fake_chat import Answer, FakeChat, fake_chat
from tests.lab import Lab, eventually, laboratory
from tests.processes import WorkerProcess
from tests.viewing import Viewing

CHEAP, DEAR = Price(input=Decimal(1), output=Decimal(10)), Price(input=Decimal(100), output=Decimal(1_000))
SOON = {"error": {"message": "slow down", "details": [{"retryDelay": "0.01s"}]}}
"""The body of a refusal that passes at once."""
BUSY: Answer = {"status": 429, "body": SOON}
BAD_KEY: Answer = {"status": 401, "body": {"error": {"message": "bad key"}}}


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def said(status: str, body: str | dict[str, Any] = "", kind: str = "application/json", more: str = "") -> bytes:
    """A whole HTTP response."""
    data = (json.dumps(body) if isinstance(body, dict) else body).encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{more}connection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def error(message: str, **fields: str) -> dict[str, Any]:
    """The body of a refusal."""
    return {"error": {"message": message, **fields}}


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
BEGUN = STREAM + b'data: {"choices": [{"delta": {"content": "Half an ans"}}]}\n\n'
LONG = error("This model's maximum context length is 8192 tokens", code="context_length_exceeded")

FINAL: dict[str, bytes] = {
    "400": said("400 X", error("no such field", type="invalid_request_error")),
    "401": said("401 X", error("bad key")),
    "402": said("402 X", error("pay first")),
    "403": said("403 X", error("not yours")),
    "404": said("404 X", error("no such model", code="model_not_found")),
    "context too long": said("400 X", LONG),
    "413": said("413 X", "too large", "text/plain"),
    "insufficient quota": said("429 X", error("no money", code="insufficient_quota"), more="retry-after: 3600\r\n"),
    "redirect": said("302 X", more="location: /elsewhere\r\n"),
}
"""Responses that speak of what will not pass."""

PASSING: dict[str, bytes] = {
    "408": said("408 X"),
    "429 that says how long": said("429 X", error("slow down"), more="retry-after: 3600\r\n"),
    "500": said("500 X", error("oops")),
    "502 of a proxy": said("502 X", "<html>bad gateway</html>", "text/html"),
    "503 that says how long": said("503 X", error("later"), more="retry-after: 3600\r\n"),
    "529": said("529 X", error("overloaded", type="overloaded_error")),
    "malformed body": said("200 OK", '{"choices": [{'),
    "another page": said("200 OK", "<html>Please log in</html>", "text/html"),
    "empty body": said("200 OK"),
    "no answer": b"",
    "stream without data": STREAM,
    "stream that breaks": BEGUN,
    "stream that tells of an error": BEGUN + b'data: {"error": {"message": "oops", "type": "server_error"}}\n\n',
    "malformed stream": STREAM + b"data: {oops\n\n",
}
"""Responses that may be better next time."""

SILENT: dict[str, bytes] = {"silence": b"", "silence after the headers": STREAM, "silence in mid-stream": BEGUN}
"""Beginnings of responses that do not go on."""


@asynccontextmanager
async def answering(response: bytes, hold: bool = False) -> AsyncIterator[FakeChat]:
    """A server that gives every request these bytes, and keeps the connection open with `hold`."""
    fake, done = FakeChat([]), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(line for line in head.split("\r\n") if line.startswith("content-length: "))
        fake.requests.append(json.loads(await reader.readexactly(int(length.partition(": ")[2]))))
        writer.write(response)
        await writer.drain()
        if hold:
            await done.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    fake.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield fake
    finally:
        done.set()
        server.close()
        await asyncio.sleep(0)


def by_model(scripts: Mapping[str, Sequence[Answer]]) -> Any:
    """An answer of a fake server by the model that is asked: each has its own list, whose last goes on."""
    counts = dict.fromkeys(scripts, -1)

    def answer(body: dict[str, Any]) -> Answer:
        name = body["model"]
        counts[name] += 1
        return scripts[name][min(counts[name], len(scripts[name]) - 1)]

    return answer


def asked(fake: FakeChat) -> str:
    """The names of the models that were asked, in order."""
    return "".join(request["model"] for request in fake.requests)


async def answered_by_second(serve: Serve, first: Model, **options: Any) -> None:
    """Check that a run of two models ends with the answer of the second, at its price, asked once."""
    async with fake_chat({"text": "hi"}) as fake:
        agent = Agent("pair", [first, fake.model("second", CHEAP)], limits=Limits(**options))
        lab = await serve(agent, idle_first=0.3, idle_between=0.3)
        run = await lab.start(agent)
        result = await run.result()
        usage = await run.handle.query("usage")
    assert (result["outcome"], result["output"], result["steps"], len(fake.requests)) == ("success", "hi", 1, 1)
    [event] = await run.events("reply")
    assert (event["model"], event["tokens"], event["cost_usd"]) == ("compatible:second", 15, "0.00006")
    confirmed = Decimal(result["cost_usd"]) - Decimal(usage["unconfirmed"]["cost_usd"])
    assert (confirmed, usage["unpriced_calls"]) == (Decimal("0.00006"), 0)


@pytest.mark.parametrize("kind", [*FINAL, *PASSING, *SILENT])
async def test_the_next_model_answers(serve: Serve, kind: str) -> None:
    """Whatever the first one does wrong, it is asked once, and the second answers without any delay of the first."""
    responses = FINAL | PASSING | SILENT
    async with answering(responses[kind], hold=kind in SILENT) as broken:
        await answered_by_second(serve, broken.model("first", CHEAP))
    assert len(broken.requests) == 1


async def test_nobody_is_there(serve: Serve) -> None:
    """A refused connection hands over too."""
    with closing(socket()) as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        await answered_by_second(serve, Model(provider="compatible", name="first", base_url=address, price=CHEAP))


@pytest.mark.parametrize(
    "first",
    [
        {"provider": "openai-chat", "api_key_env": "PERDURE_TEST_KEY_THAT_IS_NOT_SET"},
        {"provider": "compatible", "headers": {"x-team": "${PERDURE_TEST_TEAM_THAT_IS_NOT_SET}"}},
    ],
    ids=["key", "header"],
)
async def test_a_model_that_is_not_set_up(serve: Serve, first: dict[str, Any]) -> None:
    """A missing variable of the worker hands over, and nothing is sent."""
    async with answering(b"") as silent:
        await answered_by_second(serve, Model(name="first", base_url=silent.base_url, price=CHEAP, **first))
    assert silent.requests == []


async def test_a_model_whose_price_nobody_knows(serve: Serve) -> None:
    """Where a limit on cost is set the next one is asked instead, and nothing is sent to the first."""
    async with answering(b"") as silent:
        await answered_by_second(serve, silent.model("first"), cost_usd=Decimal(1))
    assert silent.requests == []


ORDERS: list[tuple[dict[str, list[Answer]], str]] = [
    ({"a": [BAD_KEY], "b": [{"text": "hi"}], "c": [{"text": "never"}]}, "ab"),
    ({"a": [BAD_KEY], "b": [BUSY, {"text": "hi"}], "c": [BUSY]}, "abcb"),
    ({"a": [BUSY, {"text": "hi"}], "b": [BAD_KEY], "c": [BAD_KEY]}, "abca"),
    ({"a": [BUSY], "b": [BUSY, {"text": "hi"}]}, "abab"),
    ({"a": [BUSY], "b": [BAD_KEY], "c": [BUSY, {"text": "hi"}]}, "abcac"),
    ({"a": [BUSY, BAD_KEY], "b": [BUSY, BUSY, {"text": "hi"}]}, "ababb"),
]


@pytest.mark.parametrize(("scripts", "order"), ORDERS, ids=[order for _, order in ORDERS])
async def test_models_take_turns(serve: Serve, scripts: dict[str, list[Answer]], order: str) -> None:
    """In the order of the list, round and round; who has failed for good is not asked again in the same call."""
    async with fake_chat(by_model(scripts)) as fake:
        agent = Agent("turns", [fake.model(name, CHEAP) for name in scripts])
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["output"], asked(fake)) == ("hi", order)


@pytest.mark.parametrize(("count", "order"), [(1, "aaaaaa"), (2, "ababab"), (4, "abcdab"), (6, "abcdef")])
async def test_six_attempts_in_all(serve: Serve, count: int, order: str) -> None:
    """However many models there are, a call is attempted six times."""
    names = "abcdef"[:count]
    async with fake_chat(by_model({name: [BUSY] for name in names})) as fake:
        agent = Agent("busy", [fake.model(name, CHEAP) for name in names])
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"], asked(fake)) == ("failed", "provider_error", order)
    assert "slow down" in result["message"]


@pytest.mark.parametrize(
    ("last", "reason", "words"),
    [
        ({"status": 400, "body": LONG}, "context_length", "8192"),
        ({"status": 402, "body": error("pay first")}, "provider_error", "pay first"),
    ],
    ids=["context", "quota"],
)
async def test_all_have_failed_for_good(serve: Serve, last: Answer, reason: str, words: str) -> None:
    """The run fails with what the last one said, and each was asked once."""
    async with fake_chat(by_model({"a": [BAD_KEY], "b": [BAD_KEY], "c": [last]})) as fake:
        agent = Agent("doomed", [fake.model(name) for name in "abc"])
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"], asked(fake)) == ("failed", reason, "abc")
    assert words in result["message"]


async def test_no_model_has_a_price(serve: Serve) -> None:
    """With a limit on cost that ends the run as for one model, and nothing is sent."""
    async with fake_chat({"text": "never"}) as fake:
        agent = Agent("poor", [fake.model("x-1"), fake.model("x-2")], limits=Limits(cost_usd=Decimal(1)))
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"], fake.requests) == ("failed", "unknown_price", [])
    assert "x-2" in result["message"]


async def test_the_next_call_begins_with_the_first_model(serve: Serve) -> None:
    """What failed for good in one call is asked again in the next."""
    scripts: dict[str, list[Answer]] = {"a": [BAD_KEY, {"text": "hi"}], "b": [{"calls": [call("look", n=1)]}]}
    async with fake_chat(by_model(scripts)) as fake:
        agent = Agent("fresh", [fake.model(name) for name in "ab"], tools=[look])
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["output"] == "hi"
    assert asked(fake) == "aba"
    assert [event.get("model") for event in await run.events("reply")] == ["compatible:b", None]


async def test_what_a_model_had_begun_to_say_is_void(serve: Serve) -> None:
    """Who watches sees the first one's words, that they no longer count, and then the second one's."""
    shown = asyncio.Event()
    first: Answer = {"text": ["Half an ", "answer"], "hold_at": {1: shown}, "cut": 2}
    async with fake_chat(first) as broken, fake_chat({"text": "Whole."}) as fake:
        agent = Agent("talker", [broken.model("a"), fake.model("b")])
        lab = await serve(agent)
        run = await lab.start(agent)
        viewer, seen = Viewing(), []
        async with aclosing(Client(lab.client).handle(run.id).stream()) as stream:
            async for event in stream:
                viewer.take(event)
                seen.append(viewer.text)
                if event.type == "text":
                    shown.set()
    assert "Half an " in seen
    assert "reset" in viewer.live
    assert viewer.replies == {1: "Whole."}
    assert [m["parts"][0]["text"] for m in await run.messages() if m["role"] == "assistant"] == ["Whole."]


async def test_what_came_to_nothing_is_priced_by_who_said_it(serve: Serve) -> None:
    """900 tokens of a dear model that broke off cost what that model costs, and the answer what the cheap one does."""
    words = "abc " * 900
    async with fake_chat({"text": words, "cut": 1}) as broken, fake_chat({"text": "hi"}) as fake:
        agent = Agent("mixed", [broken.model("a", DEAR), fake.model("b", CHEAP)])
        lab = await serve(agent)
        run = await lab.start(agent)
        result = await run.result()
        lost = (await run.handle.query("usage"))["unconfirmed"]
    assert lost["output_tokens"] == 900
    assert Decimal(lost["cost_usd"]) == (lost["input_tokens"] * DEAR.input + 900 * DEAR.output) / 1_000_000
    assert Decimal(result["cost_usd"]) - Decimal(lost["cost_usd"]) == Decimal("0.00006")


async def test_a_limit_on_cost_counts_what_another_model_has_used(serve: Serve) -> None:
    """What the dear one has spent is missing for the cheap one, which is not asked."""
    words = "abc " * 900
    async with fake_chat({"text": words, "cut": 1}) as broken, fake_chat({"text": "never"}) as fake:
        models = [broken.model("a", DEAR), fake.model("b", CHEAP)]
        agent = Agent("mixed", models, limits=Limits(cost_usd=Decimal("0.9")))
        lab = await serve(agent)
        result = await lab.run(agent)
    assert (result["outcome"], result["reason"], fake.requests) == ("budget_exceeded", "max_cost", [])
    assert Decimal(result["cost_usd"]) >= Decimal("0.9")


WORST, NONE = "worst_case", "ignore"


@pytest.mark.parametrize("limit", [None, Decimal(100)], ids=["free", "limited"])
@pytest.mark.parametrize("policy", ["deny", WORST, NONE])
async def test_a_price_that_nobody_knows(serve: Serve, policy: Any, limit: Decimal | None) -> None:
    """Deny sends nothing where a limit is set; the others send, count the dearest or nothing, and say so."""
    async with fake_chat({"text": "hi"}) as fake:
        model = fake.model("no-such-model-anywhere").model_copy(update={"unknown_price": policy})
        agent = Agent("unpriced", model, limits=Limits(cost_usd=limit))
        lab = await serve(agent)
        run = await lab.start(agent)
        result = await run.ended()
        unpriced = (await run.handle.query("usage"))["unpriced_calls"]
    if policy == "deny" and limit:
        assert (result["outcome"], result["reason"], fake.requests, unpriced) == ("failed", "unknown_price", [], 0)
        return
    assert (result["outcome"], len(fake.requests), unpriced) == ("success", 1, 1)
    assert (Decimal(result["cost_usd"]) > 0) is (policy == WORST)


async def test_an_own_price_wins(serve: Serve) -> None:
    """A price of the model's own counts, whatever is to be done where there is none."""
    async with fake_chat({"text": "hi"}) as fake:
        model = fake.model("gpt-4o", CHEAP).model_copy(update={"unknown_price": WORST})
        agent = Agent("priced", model)
        lab = await serve(agent)
        run = await lab.start(agent)
        assert (await run.result())["cost_usd"] == "0.00006"
        assert (await run.handle.query("usage"))["unpriced_calls"] == 0


@pytest.mark.slow
async def test_a_worker_that_stops_is_no_fault_of_its_model(client: TemporalClient, data_dir: Path) -> None:
    """The call goes on elsewhere with the same model, and what failed for good before stays out."""
    never = asyncio.Event()
    scripts: dict[str, list[Answer]] = {
        "a": [BAD_KEY],
        "b": [{"text": "Half", "hold_end": never}, {"text": "hi"}],
        "c": [{"text": "never"}],
    }
    async with fake_chat(by_model(scripts)) as fake:
        agent = Agent("mover", [fake.model(name) for name in "abc"])
        async with laboratory(client, data_dir, agent) as lab:
            run = await lab.start(agent)
            await eventually(lambda: len(fake.requests) == 2)
        async with laboratory(client, data_dir, agent, queue=lab.queue):
            assert (await run.result())["output"] == "hi"
        never.set()
    assert asked(fake) == "abb"


KILLED = """
from perdure import Agent, Model

chained = Agent("chained", [Model(provider="compatible", name=name, base_url="{url}") for name in "abc"])
"""


@pytest.mark.slow
async def test_a_worker_that_is_killed_keeps_what_it_knows(
    client: TemporalClient, temporal_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Who has failed for good is not asked by the next worker; who was asked when it died has had its turn."""
    never = asyncio.Event()
    scripts: dict[str, list[Answer]] = {
        "a": [BAD_KEY],
        "b": [{"text": ["Half ", "of it"], "hold_at": {1: never}}],
        "c": [BUSY, {"text": "hi"}],
    }
    scripts["b"].append(BAD_KEY)
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(fake_chat(by_model(scripts)))
        agents = tmp_path / "agents_of_chain.py"
        agents.write_text(KILLED.replace("{url}", fake.base_url))
        queue = f"q-{tmp_path.name}"

        def launch(number: int) -> WorkerProcess:
            return WorkerProcess(agents, address=temporal_server.address, queue=queue, data_dir=tmp_path,
                                 log=tmp_path / f"{number}.log")  # fmt: skip

        first = launch(1)
        try:
            await eventually(lambda: first.serving)
            lab = Lab(client, queue, None)  # type: ignore[arg-type]
            run = await lab.start("chained")

            async def beaten() -> bool:
                pending = (await run.handle.describe()).raw_description.pending_activities
                return any("Half" in str(activity.heartbeat_details) for activity in pending)

            await eventually(beaten)
        finally:
            first.close()
        second = launch(2)
        try:
            result = await asyncio.wait_for(run.handle.result(), 120)
        finally:
            never.set()
            second.close()
    assert (result["output"], asked(fake)) == ("hi", "abcbc")
