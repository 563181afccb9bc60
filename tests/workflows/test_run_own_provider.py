"""Models that a function of the author's answers: replies, failures, streams, and workers that do not have it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client as TemporalClient

from activities._failures import RETRYABLE
from activities.own_provider import answered
from activities.registry import Registry, load
from perdure import Agent, Client, Model, ModelReply, ModelRequest, Price, ProviderError, provider, tool
from perdure.errors import ErrorKind
from perdure.messages import AssistantMessage, ToolMessage, Usage, text_of
from perdure.model_call import Finish, RawCall, RawText, RawThinking
from perdure.own_providers import OwnProvider, own_providers
from perdure.testing import reply, scripted
from tests.checkout import ROOT
from tests.conftest import Serve
from tests.lab import eventually, laboratory
from tests.viewing import Viewing, recorded

FILE = """
from perdure import Agent, ModelReply, provider, tool
from perdure.model_call import Finish, RawCall, RawText

@provider("fromfile")
async def complete(request):
    if len(request.messages) == 1:
        return ModelReply(parts=(RawCall("add", {"a": 1, "b": 2}),), finish=Finish.STOP, usage=None)
    return f"{request.model} says {request.messages[-1].parts[0].text}"

@tool(effect="read")
def add(a: int, b: int) -> int:
    "Add."
    return a + b

adder = Agent("adder", "fromfile:x-1", tools=[add])
"""


@tool(effect="read")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """Providers of one test are not those of the next."""
    before = dict(own_providers)
    yield
    own_providers.clear()
    own_providers.update(before)


def said(*parts: Any, usage: Usage | None = None, finish: Finish = Finish.STOP) -> ModelReply:
    """A reply of these parts."""
    return ModelReply(parts=parts, finish=finish, usage=usage)


def answering(*answers: Any, name: str = "mine") -> list[ModelRequest]:
    """Register a provider that gives one answer after the other, the last for ever; exceptions are raised."""
    requests: list[ModelRequest] = []

    @provider(name)
    async def complete(request: ModelRequest) -> Any:
        requests.append(request)
        answer = answers[min(len(requests), len(answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return requests


async def test_an_agents_file(tmp_path: Path, client: TemporalClient, data_dir: Path) -> None:
    """A provider and an agent of one file, loaded as a worker loads it: a call, its result, a text as the answer."""
    path = tmp_path / "agents_with_provider.py"
    path.write_text(FILE)
    registry = Registry()
    load([str(path)], registry)
    async with laboratory(client, data_dir, *registry.agents.values()) as lab:
        run = await lab.start("adder")
        result = await run.result()
        assert (result["output"], result["steps"], result["tool_calls"]) == ("x-1 says 3", 2, 1)


async def test_what_it_is_asked(serve: Serve) -> None:
    """The request holds instructions, tools, params and the conversation, with results and with its own details."""
    requests = answering(
        said(RawThinking("Hm.", {"sign": "s"}), RawText("Adding."), RawCall("add", {"a": 1, "b": 2}, {"id": "x7"})),
        said(RawText("3.")),
    )
    model = Model(provider="mine", name="m", params={"heat": 1})
    agent = Agent("asker", model, "Be brief.", tools=[add])
    lab = await serve(agent)
    assert (await lab.run(agent, "1+2?"))["output"] == "3."
    first, second = requests
    assert (first.model, first.instructions, first.params) == ("m", "Be brief.", {"heat": 1})
    assert [t.name for t in first.tools] == ["add"]
    assert first.tool_choice == "auto"
    assert [text_of(m) for m in first.messages] == ["1+2?"]
    user, assistant, result = second.messages
    assert isinstance(assistant, AssistantMessage)
    assert isinstance(result, ToolMessage)
    assert [p.type for p in assistant.parts] == ["thinking", "text", "call"]
    mine = {"provider": "mine"}
    details = [getattr(part, "details", None) for part in assistant.parts]
    assert details == [{**mine, "sign": "s"}, None, {**mine, "id": "x7"}]
    assert (result.call, text_of(result), text_of(user)) == ("c1", "3", "1+2?")


@pytest.mark.parametrize("arguments", ['{"a": 1, "b": 2}', {"a": 1, "b": 2}, '{"a": 1, "b": "2",}'])
async def test_arguments(serve: Serve, arguments: Any) -> None:
    """Arguments may be an object, or text that is decoded, repaired and checked as any provider's."""
    answering(said(RawCall("add", arguments)), "done")
    agent = Agent("caller", "mine:m", tools=[add])
    lab = await serve(agent)
    run = await lab.start(agent)
    assert (await run.result())["output"] == "done"
    assert await run.results() == {"c1": "3"}


async def test_usage_and_price(serve: Serve) -> None:
    """Its usage is counted and priced by the model's price; without usage four characters are a token."""
    answering(said(RawText("a"), usage=Usage(input_tokens=1_000, cached_tokens=400, output_tokens=100)))
    answering("b" * 400, name="silent")
    price = Price(input=2, output=10, cached=1)
    exact = Agent("exact", Model(provider="mine", name="m", price=price))
    rough = Agent("rough", Model(provider="silent", name="m", price=price))
    lab = await serve(exact, rough)
    told = await lab.run(exact)
    assert told["usage"] == {"input_tokens": 1_000, "cached_tokens": 400, "output_tokens": 100, "reasoning_tokens": 0}
    assert told["cost_usd"] == "0.0026"
    assert (await lab.run(rough))["usage"]["output_tokens"] == 101


async def test_a_limit_on_money_reaches_it(serve: Serve) -> None:
    """`max_tokens` of a request is what the money that is left buys."""
    requests = answering("ok")
    model = Model(provider="mine", name="m", price=Price(input=0, output=1_000))
    agent = Agent("frugal", model)
    lab = await serve(agent)
    assert (await lab.run(agent, limits={"cost_usd": "0.1"}))["outcome"] == "success"
    assert requests[0].max_tokens == 100


async def test_viewers_see_what_it_shows(serve: Serve) -> None:
    """Text comes while it is shown, a further attempt voids it, and a thread of its own may show too."""
    goes_on = asyncio.Event()
    loop = asyncio.get_running_loop()
    attempts: list[int] = []
    late: list[Callable[[str], None]] = []

    @provider("shower")
    async def complete(request: ModelRequest, show: Callable[[str], None]) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            show("Void ")
            show("words.")
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(goes_on.wait(), loop))
            late.append(show)
            raise ProviderError(ErrorKind.OVERLOADED, "later", retry_after=0.01)
        late[0]("a voice from the attempt before")
        await asyncio.get_running_loop().run_in_executor(None, show, "The ")
        show("answer.")
        return "The answer."

    agent = Agent("shown", "shower:m")
    lab = await serve(agent)
    run = await lab.start(agent)
    viewing = Viewing()
    stream = Client(lab.client).handle(run.id).stream()
    await viewing.until(stream, "text")
    assert viewing.text in ("Void ", "Void words.")
    goes_on.set()
    await viewing.follow(stream)
    assert "reset" in viewing.live
    assert viewing.replies == await recorded(run) == {1: "The answer."}


@pytest.mark.parametrize("kind", list(ErrorKind))
async def test_every_kind_of_failure(serve: Serve, kind: ErrorKind) -> None:
    """A ProviderError is retried or ends the run as the same failure of any other provider does."""
    requests = answering(ProviderError(kind, "no luck", retry_after=0.01, status=500, request_id="r-1"), "better")
    agent = Agent("failing", "mine:m")
    lab = await serve(agent)
    ended = await lab.run(agent)
    assert len(requests) == (2 if RETRYABLE[kind] else 1)
    if RETRYABLE[kind]:
        assert ended["output"] == "better"
    else:
        assert (ended["outcome"], "no luck (request r-1)" in ended["message"]) == ("failed", True)


RAISED: list[BaseException] = [
    ValueError("a bad day"),
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    ProviderError("no kind", "x"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
async def test_whatever_else_it_raises(serve: Serve, error: BaseException) -> None:
    """It is told, and the next model of the chain answers; the worker goes on."""
    answering(error)
    agent = Agent("raising", ["mine:m", scripted(reply("from elsewhere"))])
    lab = await serve(agent)
    run = await lab.start(agent)
    assert (await run.result())["output"] == "from elsewhere"


async def test_what_it_raises_is_told(serve: Serve) -> None:
    """An exception that is no ProviderError is retried, and shown while it is."""
    requests = answering(ValueError("a bad \ud800 day"), "better")
    agent = Agent("retrying", "mine:m")
    lab = await serve(agent)
    run = await lab.start(agent)

    async def told() -> str | None:
        found = await run.handle.describe()
        return next((a.last_failure.message for a in found.raw_description.pending_activities), None)

    seen = await eventually(told)
    assert "mine: ValueError: a bad" in seen
    assert (await run.result())["output"] == "better"
    assert len(requests) == 2


WRONG: list[tuple[Any, str]] = [
    (7, "it must return a ModelReply or a text, not int"),
    (None, "it must return a ModelReply or a text, not NoneType"),
    ({"text": "x"}, "it must return a ModelReply or a text, not dict"),
    (said("text"), "parts: must be a tuple of RawText, RawThinking and RawCall"),
    (said(RawText(3)), "text: Input should be a valid string"),  # type: ignore[arg-type]
    (said(RawCall("add", [1])), "arguments"),  # type: ignore[arg-type]
    (said(RawText("x"), finish="tool_calls"), "finish: Input should be 'stop'"),  # type: ignore[arg-type]
    (said(RawText("x", details=[1])), "details: Input should be a valid"),  # type: ignore[arg-type]
    (said(RawText("x"), usage=3), "usage"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("answer", "words"), WRONG, ids=range(len(WRONG)))
async def test_a_wrong_reply(serve: Serve, answer: Any, words: str) -> None:
    """It ends the run at once, and says what the function must return."""
    requests = answering(answer)
    agent = Agent("wrong", "mine:m")
    lab = await serve(agent)
    ended = await lab.run(agent)
    assert (ended["outcome"], ended["reason"]) == ("failed", "configuration")
    assert "mine: " in ended["message"]
    assert words in ended["message"]
    assert len(requests) == 1


@pytest.mark.parametrize("empty", ["", " \n", said()])
async def test_an_empty_reply(serve: Serve, empty: Any) -> None:
    """Nothing is no answer: it is asked again."""
    requests = answering(empty, "better")
    agent = Agent("emptied", "mine:m")
    lab = await serve(agent)
    assert (await lab.run(agent))["output"] == "better"
    assert len(requests) == 2


async def test_blocking_code_does_not_silence_the_worker(serve: Serve) -> None:
    """While it blocks, heartbeats go out, and other runs of the worker end."""
    release, begun = threading.Event(), threading.Event()

    @provider("blocker")
    async def complete(request: ModelRequest) -> str:
        begun.set()
        assert release.wait(60)
        return "at last"

    agent, other = Agent("blocked", "blocker:m"), Agent("other", scripted(reply("meanwhile")))
    lab = await serve(agent, other)
    run = await lab.start(agent)
    try:
        assert await asyncio.to_thread(begun.wait, 30)

        async def beaten() -> Any:
            found = await run.handle.describe()
            activities = found.raw_description.pending_activities
            return activities and activities[0].HasField("last_heartbeat_time") and activities[0].last_heartbeat_time

        first = await eventually(beaten)

        async def again() -> bool:
            return bool(await beaten() != first)

        await eventually(again)
        assert (await lab.run(other))["output"] == "meanwhile"
    finally:
        release.set()
    assert (await run.result())["output"] == "at last"


async def test_cancellation_reaches_it(serve: Serve) -> None:
    """A cancelled run cancels the function where it waits, which may still clean up."""
    begun, cleaned = threading.Event(), threading.Event()

    @provider("waiter")
    async def complete(request: ModelRequest) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()
        return ""

    agent = Agent("waiting", "waiter:m")
    lab = await serve(agent)
    run = await lab.start(agent)
    assert await asyncio.to_thread(begun.wait, 30)
    await run.handle.cancel()
    assert (await run.ended())["outcome"] == "cancelled"
    assert await asyncio.to_thread(cleaned.wait, 30)


@pytest.mark.parametrize("kind", [ErrorKind.AUTHENTICATION, ErrorKind.OVERLOADED])
async def test_in_a_chain(serve: Serve, kind: ErrorKind) -> None:
    """It takes over where another model fails, and hands over where it fails itself."""
    answering("from mine")
    answering(ProviderError(kind, "no"), name="weak")
    failing = scripted({"error": {"kind": str(kind)}})
    second, third = Agent("second", [failing, "mine:m"]), Agent("third", ["weak:m", failing, "mine:n"])
    lab = await serve(second, third)
    for agent in (second, third):
        assert (await lab.run(agent))["output"] == "from mine"


async def test_an_agent_as_data(serve: Serve) -> None:
    """It may name a provider of the worker; one that is not there is refused with those that are."""
    answering("ok")
    lab = await serve(Agent("other", scripted(reply(""))))
    assert (await lab.run({"name": "d", "model": "mine:m"}))["output"] == "ok"
    ended = await lab.run({"name": "d", "model": "yours:m"})
    assert ended["outcome"] == "invalid_input"
    assert "'yours'" in ended["message"]
    assert "mine" in ended["message"]


async def test_a_worker_without_it(serve: Serve) -> None:
    """A run that began elsewhere fails with the name of the provider, and its workflow task is never stuck."""
    answering("ok")
    agent = Agent("moved", "mine:m")
    lab = await serve(agent)
    del own_providers["mine"]
    run = await lab.start(agent)
    ended = await run.ended()
    assert (ended["outcome"], ended["reason"]) == ("failed", "configuration")
    assert "'mine:m': this worker has no provider 'mine'" in ended["message"]
    assert "agents file of every worker" in ended["message"]
    failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    assert failed not in [e.event_type async for e in run.handle.fetch_history_events()]


async def test_replay_without_it(serve: Serve, tmp_path: Path) -> None:
    """An old run replays in a process that has never heard of its provider."""
    answering(said(RawCall("add", {"a": 1, "b": 2})), "done")
    agent = Agent("old", "mine:m", tools=[add])
    lab = await serve(agent)
    run = await lab.start(agent)
    await run.result()
    path = tmp_path / f"{run.id}.json"
    path.write_text((await run.handle.fetch_history()).to_json())
    command = [sys.executable, "-m", "tests.replay.replay", str(path)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert json.loads(done.stdout) == {path.name: None}, done.stderr


ASKED = ModelRequest(model="m", instructions="", messages=())


async def test_what_is_shown_belongs_to_its_call() -> None:
    """From whatever thread it comes it is shown as by the call itself, and no more once the call is over."""
    call: ContextVar[str] = ContextVar("call")
    shown: list[tuple[str, str]] = []
    kept: list[Callable[[str], None]] = []

    async def complete(request: ModelRequest, show: Callable[[str], None]) -> str:
        kept.append(show)
        show("a")
        await asyncio.get_running_loop().run_in_executor(None, show, "b")
        return "ab"

    call.set("this")
    mine = OwnProvider("mine", complete, streams=True)
    await answered(mine, ASKED, lambda text: shown.append((call.get("none"), text)), None)
    kept[0]("too late")
    await asyncio.sleep(0)
    assert shown == [("this", "a"), ("this", "b")]


@pytest.mark.parametrize(
    ("given", "kept"), [(3, 3), (0, 0), (-1, None), (float("nan"), None), ("soon", None), (None, None)]
)
async def test_a_delay_that_is_none(given: Any, kept: float | None) -> None:
    """Only seconds from 0 on are a delay."""

    async def complete(request: ModelRequest) -> str:
        raise ProviderError(ErrorKind.RATE_LIMIT, "busy", retry_after=given)

    with pytest.raises(ProviderError) as told:
        await answered(OwnProvider("mine", complete, streams=False), ASKED, lambda text: None, None)
    assert told.value.retry_after == kept
