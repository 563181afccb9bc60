"""A live check of one model with the key of the environment: `make smoke PROVIDER=openai MODEL=gpt-5-mini`.

python -m bench.smoke PROVIDER MODEL [--url URL] [--header NAME=VALUE ...]

It makes some ten small calls and one run, which costs about a cent, and prints what each has shown.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import os
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from activities.endpoints import entry_of
from activities.exchange import Exchange, Idle
from activities.http import make_client
from activities.prices import cost_of
from perdure import Agent, ConfigError, Model, local, tool
from perdure.arguments import parse_arguments
from perdure.errors import ErrorKind, PerdureError, ProviderError
from perdure.messages import (
    AssistantMessage,
    CallPart,
    ImagePart,
    Message,
    TextPart,
    ThinkingPart,
    ToolMessage,
    Usage,
    UserMessage,
)
from perdure.messages import text as text_parts
from perdure.model import parse_model
from perdure.model_call import ModelReply, ModelRequest, RawCall, RawText, ToolDefinition
from perdure.redact import Redactor, secrets_of

PATIENCE = 120.0
"""Seconds for one answer."""
PLAYED = frozenset({"scripted", "recorded"})
"""Providers without a server."""
ADD = ToolDefinition(
    "add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
CAPITAL: Mapping[str, Any] = {
    "type": "object",
    "properties": {"capital": {"type": "string"}},
    "required": ["capital"],
    "additionalProperties": False,
}


class Unexpected(Exception):
    """The model has answered something else."""


@dataclass
class Bench:
    """One model and what its calls have used."""

    model: Model
    exchange: Exchange
    used: Usage = field(default_factory=Usage)

    async def ask(self, request: ModelRequest, show: Callable[[str], None] = lambda text: None) -> ModelReply:
        """One call."""
        reply = await asyncio.wait_for(self.exchange.complete(self.model, request, show), PATIENCE)
        self.used += reply.usage or Usage()
        return reply

    def request(self, *messages: Message, **options: Any) -> ModelRequest:
        """A request of this model."""
        return ModelRequest(self.model.name, "Answer briefly.", messages, params=self.model.params, **options)


def user(words: str, *parts: ImagePart) -> UserMessage:
    """A message of the user."""
    return UserMessage(role="user", parts=(*text_parts(words), *parts))


def words_of(reply: ModelReply) -> str:
    """The text of a reply."""
    return "".join(part.text for part in reply.parts if isinstance(part, RawText))


def expect(holds: bool, what: str) -> None:
    """Raise Unexpected."""
    if not holds:
        raise Unexpected(what)


async def completion(bench: Bench) -> str:
    """Text, and what it has used."""
    reply = await bench.ask(bench.request(user("Say the word: ready")))
    expect("ready" in words_of(reply).lower(), f"it said {words_of(reply)[:80]!r}")
    expect(reply.usage is not None, "it reported no usage")
    return words_of(reply)[:40]


async def streaming(bench: Bench) -> str:
    """The answer comes in pieces that make the whole."""
    pieces: list[str] = []
    reply = await bench.ask(bench.request(user("Count from 1 to 30 in digits, with commas.")), pieces.append)
    shown = [piece for piece in pieces if piece]
    expect("".join(shown) == words_of(reply), "the pieces are not the whole")
    expect("29" in words_of(reply) and "30" in words_of(reply), f"it said {words_of(reply)[:80]!r}")
    return f"{len(shown)} pieces"


async def tools(bench: Bench) -> str:
    """A call with arguments, and an answer made of its result; what the model thought goes back with it."""
    asked = user("What is 17 + 25? Use the tool.")
    reply = await bench.ask(bench.request(asked, tools=(ADD,), tool_choice="required"))
    made = [part for part in reply.parts if isinstance(part, RawCall)]
    expect(bool(made), "it called no tool")
    answer = assistant(reply)
    results = [ToolMessage(role="tool", call=call.id, parts=text_parts("42")) for call in answer.calls]
    reply = await bench.ask(bench.request(asked, answer, *results, tools=(ADD,)))
    expect("42" in words_of(reply), f"it said {words_of(reply)[:80]!r}")
    return f"{len(made)} call, {made[0].tool}"


def assistant(reply: ModelReply) -> AssistantMessage:
    """A reply as a run keeps it."""
    parts: list[TextPart | ThinkingPart | CallPart] = []
    for part in reply.parts:
        details = dict(part.details) if part.details else None
        if isinstance(part, RawCall):
            given, name = parse_arguments(part.arguments).value or {}, f"c{len(parts) + 1}"
            parts.append(CallPart(type="call", id=name, tool=part.tool, arguments=given, details=details))
        elif isinstance(part, RawText):
            parts.append(TextPart(type="text", text=part.text, details=details))
        else:
            parts.append(ThinkingPart(type="thinking", text=part.text, details=details))
    return AssistantMessage(role="assistant", parts=tuple(parts))


async def structured(bench: Bench) -> str:
    """An object that fits a schema."""
    reply = await bench.ask(bench.request(user("The capital of Norway?"), output_schema=CAPITAL))
    try:
        found = json.loads(words_of(reply))
    except ValueError:
        raise Unexpected(f"it is not JSON: {words_of(reply)[:80]!r}") from None
    fits = isinstance(found, dict) and "oslo" in str(found.get("capital")).lower()
    expect(fits, f"it does not fit the schema: {words_of(reply)[:80]!r}")
    return words_of(reply)[:40]


async def images(bench: Bench) -> str:
    """The colour of a picture."""
    picture = ImagePart(type="image", base64=red_square(), media_type="image/png")
    reply = await bench.ask(bench.request(user("Which colour is this square? One word.", picture)))
    expect("red" in words_of(reply).lower(), f"it said {words_of(reply)[:80]!r}")
    return words_of(reply)[:40]


def red_square(side: int = 32) -> str:
    """A PNG in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\xff\0\0" * side for _ in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


async def unknown_model(bench: Bench) -> str:
    """A model that does not exist is told so."""
    other = replace(bench, model=bench.model.model_copy(update={"name": "no-such-model-of-anybody"}))
    return await refused(other, {ErrorKind.NOT_FOUND, ErrorKind.INVALID_REQUEST})


async def wrong_key(bench: Bench) -> str:
    """A wrong key is told so, and not shown; a server that was given none may ask for none."""
    entry = entry_of(bench.model)
    if not entry.key_required and not os.environ.get(bench.model.api_key_env or entry.api_key_env or ""):
        return "not tried: no key is set, and none is needed"
    async with exchange({**os.environ, "PERDURE_SMOKE_KEY": "sk-wrong-0123456789abcdef"}) as other:
        model = bench.model.model_copy(update={"api_key_env": "PERDURE_SMOKE_KEY"})
        return await refused(Bench(model, other), {ErrorKind.AUTHENTICATION})


async def refused(bench: Bench, kinds: set[ErrorKind]) -> str:
    """The kind of the error that a call ends with."""
    try:
        await bench.ask(bench.request(user("Say: ok")))
    except ProviderError as error:
        expect(error.kind in kinds, f"{error.kind.value}: {error}")
        expect("0123456789abcdef" not in str(error), "the error shows the key")
        return error.kind.value
    raise Unexpected("it was answered")


async def a_run(bench: Bench) -> str:
    """A whole run with a tool, on an embedded server."""

    @tool(effect="read")
    def look_up(city: str) -> str:
        """The weather of a city."""
        return f"{city}: 9 degrees"

    agent = Agent("smoke", bench.model, "Answer with the tool's words.", tools=[look_up])
    with tempfile.TemporaryDirectory() as folder:
        result = await asyncio.to_thread(_run, agent, folder)
    bench.used += result.usage
    expect(result.outcome == "success" and "9" in result.output, f"{result.outcome}: {result.output[:80]!r}")
    return f"{result.steps} steps, {result.tool_calls} call"


def _run(agent: Agent, folder: str) -> Any:
    with local(agent, data_dir=folder) as here:
        return here.run(agent, "How is the weather in Oslo?")


CHECKS: Mapping[str, Callable[[Bench], Awaitable[str]]] = {
    "completion": completion,
    "streaming": streaming,
    "tools": tools,
    "structured output": structured,
    "images": images,
    "unknown model": unknown_model,
    "wrong key": wrong_key,
    "a run": a_run,
}


@asynccontextmanager
async def exchange(environment: Mapping[str, str]) -> Any:
    """An exchange with a client of its own."""
    async with make_client() as http:
        yield Exchange(http, environment, Idle(PATIENCE, PATIENCE))


async def check(model: Model, names: Sequence[str]) -> int:
    """Print a line for each check; how many have failed."""
    failed, costs, redactor = 0, list[Decimal | None](), Redactor(secrets_of(os.environ))
    async with exchange(os.environ) as sends:
        for name in names:
            bench, begun = Bench(model, sends), time.monotonic()
            try:
                told, mark = await CHECKS[name](bench), "ok"
            except (PerdureError, Unexpected, ValueError) as error:
                told, mark = f"{error.kind}: {error}" if isinstance(error, ProviderError) else str(error), "FAILED"
            except TimeoutError:
                told, mark = f"no answer within {PATIENCE:g} s", "FAILED"
            failed += mark == "FAILED"
            # Words of a server may repeat the key that it was sent.
            told = redactor.text(" ".join(told.split()))[:200]
            costs.append(cost_of(model, bench.used))
            seconds = time.monotonic() - begun
            price = shown_cost(costs[-1:])
            print(f"{name:18} {mark:7} {bench.used.total:>7} tokens {price:>9} {seconds:6.1f} s  {told}", flush=True)
    print(f"{model.label}: {len(names) - failed} of {len(names)} checks passed, cost: {shown_cost(costs)}")
    return failed


def shown_cost(costs: Sequence[Decimal | None]) -> str:
    """The sum in dollars; `unknown` where the price of one is."""
    known = [cost for cost in costs if cost is not None]
    return f"${sum(known, start=Decimal(0)):.5f}" if len(known) == len(costs) else "unknown"


def main(arguments: Sequence[str]) -> int:
    """Exit code of the command: 1 where a check has failed, 2 for a model that cannot be tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("provider")
    parser.add_argument("model")
    parser.add_argument("--url", help="address below which the API is")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="may name ${VARIABLES}")
    parser.add_argument("--only", action="append", choices=[*CHECKS], help="make this check; may be repeated")
    given = parser.parse_args(arguments)
    headers = dict(header.partition("=")[::2] for header in given.header)
    try:
        model = parse_model(
            {"provider": given.provider, "name": given.model, "base_url": given.url, "headers": headers}
        )
    except ConfigError as error:
        print(f"smoke: {error}", file=sys.stderr)
        return 2
    if model.provider in PLAYED:
        print(f"smoke: provider {model.provider!r} plays answers: there is no server to try", file=sys.stderr)
        return 2
    # What a worker says of a failure stands in the table, without keys.
    logging.disable()
    return 1 if asyncio.run(check(model, given.only or [*CHECKS])) else 0


if __name__ == "__main__":
    sys.stdout.flush()
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # a process that ran a Worker may abort while the interpreter shuts down
