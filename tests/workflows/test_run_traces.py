"""Traces of runs: one span for one thing, whichever worker did it and however long it waited."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from activities.converter import data_converter
from activities.stores.files import FileStore
from perdure import Agent, Approval, tool
from perdure.embedded import EmbeddedServer
from perdure.testing import calls, failure, reply, scripted
from tests.conftest import Serve
from tests.lab import eventually, laboratory
from tests.processes import ROOT, WorkerProcess

SECRET = "sk-abcdefghijklmnopqrstuvwx"

Spans = list[dict[str, Any]]


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}, and {SECRET}"


@tool(effect="write", approval=Approval(timeout="3d"))
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


def payer(name: str = "payer") -> Agent:
    """An agent that looks, asks for a payment and answers."""
    script = scripted(calls("look", n=1), calls("pay", to="bob"), reply("Done."), name="m-1")
    return Agent(name=name, model=script, tools=[look, pay])


def boss() -> Agent:
    """An agent that has the payer as a tool."""
    return Agent(
        name="boss",
        model=scripted(calls("payer", prompt="pay"), reply("All done.")),
        tools=[payer().as_tool(description="Pays.")],
    )


def spans_of(file: Path) -> Spans:
    """What is written so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def named(spans: Spans, name: str) -> dict[str, Any]:
    """The only span of a name."""
    [found] = [span for span in spans if span["name"] == name]
    return found


def is_whole(spans: Spans) -> bool:
    """One trace, every span once, every parent there, one root, and no part outside of its parent's time."""
    by_id = {span["span_id"]: span for span in spans}
    roots = [span for span in spans if span["parent_id"] is None]
    inside = all(
        by_id[span["parent_id"]]["start"] <= span["start"] and span["end"] <= by_id[span["parent_id"]]["end"]
        for span in spans
        if span["parent_id"] is not None
    )
    return len(by_id) == len(spans) and len(roots) == 1 and len({s["trace_id"] for s in spans}) == 1 and inside


@pytest.mark.slow
async def test_a_wait_of_two_days_with_a_new_worker(
    skipping: WorkflowEnvironment, data_dir: Path, tmp_path: Path
) -> None:
    """No span is open across the wait: before it the calls are there, at the end the root with the whole time."""
    file, agent = tmp_path / "traces.jsonl", payer()
    worker: dict[str, Any] = {"queue": "traced", "traces_file": file}
    # This server goes on giving a run's tasks to a worker that has kept it, though that one has stopped.
    async with laboratory(skipping.client, data_dir, agent, **worker, max_cached_runs=0) as lab:
        run = await lab.start(agent)
        await run.asks()
    before = spans_of(file)
    assert [span["name"] for span in before] == ["chat m-1", "attempt look", "execute_tool look", "chat m-1"]
    await skipping.sleep(timedelta(days=2))
    async with laboratory(skipping.client, data_dir, agent, **worker):
        await run.send("approve", {"by": "ann"})
        await run.result()
    spans = spans_of(file)
    assert is_whole(spans)
    root = named(spans, "invoke_agent payer")
    assert root["parent_id"] is None
    assert root["seconds"] > timedelta(days=2).total_seconds()
    assert [event["name"] for event in root["events"]] == ["approval_requested", "approval_decided"]
    assert all(span["seconds"] < 3600 for span in spans if span is not root)
    later = ["attempt pay", "execute_tool pay", "chat m-1", "invoke_agent payer"]
    assert sorted(span["name"] for span in spans[len(before) :]) == sorted(later)


async def test_a_call_that_one_worker_began_and_another_ended(client: Client, data_dir: Path, tmp_path: Path) -> None:
    """A child run and the call that started it are one trace, with the times of their real beginnings."""
    file = tmp_path / "traces.jsonl"
    agent = boss()
    async with laboratory(client, data_dir, agent, queue="traced-family", traces_file=file) as lab:
        run = await lab.start(agent, metadata={"team": "blue"}, tenant="acme")
        [pending] = await run.asks()
    assert not any(span["name"].startswith("invoke_agent") for span in spans_of(file))
    async with laboratory(client, data_dir, agent, queue="traced-family", traces_file=file):
        await run.send("approve", {"call_id": pending["call_id"], "by": "ann"})
        await run.result()
        events = await run.events()
    spans = spans_of(file)
    assert is_whole(spans)
    root, call, child = (
        named(spans, f"{n}") for n in ("invoke_agent boss", "execute_tool payer", "invoke_agent payer")
    )
    assert (call["parent_id"], child["parent_id"]) == (root["span_id"], call["span_id"])
    [begin] = [event["at"] for event in events if event["type"] == "tool_start"]
    assert call["start"] == begin
    assert named(spans, "execute_tool pay")["parent_id"] == child["span_id"]
    for span in (root, child):
        assert span["attributes"]["perdure.metadata.team"] == "blue"
        assert span["attributes"]["perdure.tenant"] == "acme"
    assert root["attributes"]["gen_ai.conversation.id"] == run.id


@pytest.mark.slow
async def test_a_run_that_continues_as_new_is_one_span(store: FileStore, data_dir: Path, tmp_path: Path) -> None:
    """From the start of the first run of the chain to the end of the last."""
    file = tmp_path / "traces.jsonl"
    script = [calls("look", n=n) for n in range(8)]
    agent = Agent(name="long", model=scripted(*script, reply("Done."), name="m-1"), tools=[look])
    settings = {"limit.historyCount.suggestContinueAsNew": "30"}
    with EmbeddedServer(tmp_path / "server", headless=True, dynamic_config=settings) as server:
        client = await Client.connect(server.address, data_converter=data_converter(store))
        async with laboratory(client, data_dir, agent, traces_file=file) as lab:
            run = await lab.start(agent)
            await run.result()
            first = client.get_workflow_handle(run.id, run_id=run.handle.first_execution_run_id)
            began = (await first.describe()).start_time
    spans = spans_of(file)
    assert is_whole(spans)
    assert len({span["attributes"].get("perdure.run_id") for span in spans} - {None}) > 1
    root = named(spans, "invoke_agent long")
    assert abs(datetime.fromisoformat(root["start"]) - began) < timedelta(seconds=1)
    assert len(root["events"]) == len([event for event in root["events"] if event["name"] == "continued"]) > 0
    assert sum(span["name"] == "execute_tool look" for span in spans) == 8


async def test_attempts_of_a_model_call_are_spans(serve: Serve, tmp_path: Path) -> None:
    """One that failed says why; the one that made the reply has its usage and its finish."""
    file = tmp_path / "traces.jsonl"
    model = scripted(failure("overloaded", times=1, then=reply("Done.")), name="m-1")
    lab = await serve(Agent(name="clerk", model=model), traces_file=file)
    await lab.run("clerk")
    spans = await eventually(lambda: (found := spans_of(file)) and len(found) == 3 and found)
    assert is_whole(spans)
    failed, good = (span for span in spans if span["name"] == "chat m-1")
    assert (failed["attributes"]["error.type"], failed["attributes"]["perdure.attempt"]) == ("overloaded", 1)
    assert failed["error"]
    assert "error.type" not in good["attributes"]
    assert good["attributes"]["gen_ai.response.finish_reasons"] == ["stop"]
    assert good["attributes"]["gen_ai.usage.output_tokens"] > 0
    assert good["attributes"]["perdure.attempt"] == 2
    assert good["kind"] == "client"


async def test_a_model_call_that_is_cancelled_is_an_error(serve: Serve, tmp_path: Path) -> None:
    """Its span ends when it is given up, and says so."""
    file = tmp_path / "traces.jsonl"
    model = scripted({"text": "never said", "delay_ms": 60_000}, name="m-1")
    lab = await serve(Agent(name="clerk", model=model), traces_file=file)
    run = await lab.start("clerk")

    async def waits() -> bool:
        return "waiting for" in str((await run.status())["activity"])

    await eventually(waits)
    await run.handle.cancel()
    await run.ended()
    spans = await eventually(lambda: (found := spans_of(file)) and len(found) == 2 and found)
    assert is_whole(spans)
    assert {span["attributes"]["error.type"] for span in spans} == {"cancelled"}


@pytest.mark.parametrize("content", [False, True])
async def test_content_is_written_only_where_it_is_wanted(serve: Serve, tmp_path: Path, content: bool) -> None:
    """Prompts, arguments and results stay out by default; where they are let in, credentials stay out still."""
    file = tmp_path / "traces.jsonl"
    model = scripted(calls("look", n=4711), reply("The answer is blue."))
    lab = await serve(
        Agent(name="clerk", model=model, tools=[look], instructions="Be brief."),
        traces_file=file,
        trace_content=content,
    )
    await lab.run("clerk", "What colour?")
    await eventually(lambda: any(span["name"] == "invoke_agent clerk" for span in spans_of(file)))
    text = file.read_text()
    for words in ("What colour?", "4711", "seen 4711", "The answer is blue.", "Be brief."):
        assert (words in text) == content
    assert SECRET not in text
    assert ("[redacted]" in text) == content


async def test_a_run_that_fails_is_an_error(serve: Serve, tmp_path: Path) -> None:
    """Also one that never began, and one that was cancelled."""
    file = tmp_path / "traces.jsonl"
    lab = await serve(payer(), traces_file=file)
    await lab.run("nobody")
    run = await lab.start("payer")
    await run.asks()
    await run.handle.cancel()
    await run.ended()

    def roots() -> Spans:
        return [span for span in spans_of(file) if span["parent_id"] is None]

    await eventually(lambda: len(roots()) == 2)
    assert [span["attributes"]["error.type"] for span in roots()] == ["invalid_input", "cancelled"]
    assert "nobody" in roots()[0]["error"]


# --- a collector ------------------------------------------------------------------------------------------------------


class Collector:
    """An OTLP receiver on loopback."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take every request of a connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(headers["content-length"]))
                self.headers.append(head)
                self.requests.append(
                    ExportTraceServiceRequest.FromString(
                        gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
                    )
                )
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
        writer.close()

    @property
    def spans(self) -> list[Any]:
        """All spans that came."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


async def test_a_collector_gets_the_same_spans(
    client: Client, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP, with OpenTelemetry's own variables; what is left is sent when the worker stops."""
    collector, file = Collector(), tmp_path / "traces.jsonl"
    server = await asyncio.start_server(collector.serve, "127.0.0.1", 0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "desk")
    agent = boss()
    async with laboratory(client, data_dir, agent, traces_file=file) as lab:
        run = await lab.start(agent)
        [pending] = await run.asks()
        await run.send("approve", {"call_id": pending["call_id"], "by": "ann"})
        await run.result()
    written = {span["span_id"]: span for span in spans_of(file)}
    sent = {span.span_id.hex(): span for span in collector.spans}
    assert is_whole(list(written.values()))
    assert set(sent) == set(written)
    assert len(collector.spans) == len(sent)
    for span_id, span in sent.items():
        assert span.name == written[span_id]["name"]
        assert span.trace_id.hex() == written[span_id]["trace_id"]
        assert (span.parent_span_id.hex() or None) == written[span_id]["parent_id"]
        assert span.start_time_unix_nano < span.end_time_unix_nano
    root = sent[named(list(written.values()), "invoke_agent boss")["span_id"]]
    shown = {attribute.key: attribute.value for attribute in root.attributes}
    assert shown["gen_ai.operation.name"].string_value == "invoke_agent"
    assert shown["perdure.steps"].int_value == 2
    resource = {a.key: a.value.string_value for a in collector.requests[0].resource_spans[0].resource.attributes}
    assert resource["service.name"] == "desk"
    assert "x-team: blue" in collector.headers[0]
    server.close()


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port where nobody answers: connections wait for ever."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(0)
        yield taken.getsockname()[1]


async def test_a_dead_collector_costs_nothing(
    client: Client,
    data_dir: Path,
    dead_port: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Runs end as ever, the worker stops although spans are left, and the trouble is logged once at most."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{dead_port}")
    agent = Agent(name="clerk", model=scripted(calls("look", n=1), reply("Done.")), tools=[look])
    with caplog.at_level(logging.WARNING):
        async with laboratory(client, data_dir, agent) as lab:
            results = await asyncio.gather(*(lab.run("clerk") for _ in range(5)))
    assert {result["output"] for result in results} == {"Done."}
    ours = [record for record in caplog.records if "opentelemetry" in record.name or "watching" in record.name]
    assert len(ours) <= 2


def test_opentelemetry_is_not_imported_unless_a_collector_is_named() -> None:
    """Neither is it needed for traces in a file."""
    code = "import sys, worker; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- a killed worker --------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_killed_worker_loses_no_call(client: Client, tmp_path: Path) -> None:
    """What it had begun is a span with its real beginning, made by the next worker; files of both are whole."""
    traces, events, queue = tmp_path / "traces.jsonl", tmp_path / "events.jsonl", f"q-{secrets.token_hex(4)}"
    environment = {
        "CHAOS_FOLDER": str(tmp_path),
        "PERDURE_TRACES_FILE": str(traces),
        "PERDURE_EVENTS_FILE": str(events),
    }

    def launch(name: str) -> WorkerProcess:
        return WorkerProcess(
            ROOT / "tests" / "chaos" / "agents_of_chaos.py",
            address=client.service_client.config.target_host,
            queue=queue,
            data_dir=tmp_path,
            log=tmp_path / f"{name}.log",
            environment=environment,
        )

    pay_once = {**calls("pay", to="bob", amount=1, gate="g"), "text": "I pay."}
    model = {"provider": "scripted", "params": {"script": [pay_once, reply("Told.")]}}
    first = launch("first")
    second: WorkerProcess | None = None
    try:
        handle = await client.start_workflow(
            "AgentWorkflow",
            {"agent": {"name": "adhoc", "model": model, "tools": ["pay"]}, "prompt": "go"},
            id=f"t-{secrets.token_hex(4)}",
            task_queue=queue,
        )
        await eventually((tmp_path / "ledger").exists)
        await eventually(lambda: events.exists() and '"tool_start"' in events.read_text())
        first.kill()
        (tmp_path / "gate-g").touch()
        second = launch("second")
        await asyncio.wait_for(handle.result(), 90)
        second.terminate()
        assert await asyncio.to_thread(second.wait, 60) == 0
    finally:
        first.close()
        if second is not None:
            second.close()
    spans = spans_of(traces)
    assert is_whole(spans)
    told = [json.loads(line) for line in events.read_text().splitlines()]
    [begin] = [event["at"] for event in told if event["type"] == "tool_start"]
    call = named(spans, "execute_tool pay")
    assert (call["start"], call["error"]) == (begin, "unknown_outcome")
    assert sorted({event["n"] for event in told if "n" in event}) == list(range(1, told[-1]["n"] + 1))
    assert told[-1]["type"] == "run_ended"
