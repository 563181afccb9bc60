"""Presets: where a call really goes, with which headers, and what is said where a variable is missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from activities.endpoints import endpoint_of
from activities.exchange import Exchange
from activities.http import make_client
from perdure import ConfigError, Model, ProviderError
from perdure.errors import ErrorKind
from perdure.messages import UserMessage, text
from perdure.model_call import ModelRequest, RawText
from providers import REGISTRY
from providers.presets import PRESETS

SECRET = "hush-0123456789"
REPLY = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}
BEARER = f"Bearer {SECRET}"


@dataclass(frozen=True)
class Facts:
    """What a server's documentation says: the whole address and the headers of a call with every variable set."""

    url: str | None
    headers: Mapping[str, str]
    needs: tuple[str, ...] = ()
    """Variables without which no call is made."""
    path: str = "/chat/completions"
    more: Mapping[str, str] = field(default_factory=dict)
    """Further variables, with values."""


CLOUDFLARE = {"CLOUDFLARE_ACCOUNT_ID": "acc1", "CLOUDFLARE_API_TOKEN": "cf-token"}
PORTKEY = {"PORTKEY_API_KEY": "pk-1"}

KNOWN: dict[str, tuple[str, Facts]] = {
    "compatible": ("COMPATIBLE_API_KEY", Facts(None, {"authorization": BEARER}, ("COMPATIBLE_BASE_URL",))),
    "deepseek": (
        "DEEPSEEK_API_KEY",
        Facts("https://api.deepseek.com/chat/completions", {"authorization": BEARER}, ("DEEPSEEK_API_KEY",)),
    ),
    "groq": (
        "GROQ_API_KEY",
        Facts("https://api.groq.com/openai/v1/chat/completions", {"authorization": BEARER}, ("GROQ_API_KEY",)),
    ),
    "moonshot": (
        "MOONSHOT_API_KEY",
        Facts("https://api.moonshot.ai/v1/chat/completions", {"authorization": BEARER}, ("MOONSHOT_API_KEY",)),
    ),
    "openrouter": (
        "OPENROUTER_API_KEY",
        Facts("https://openrouter.ai/api/v1/chat/completions", {"authorization": BEARER}, ("OPENROUTER_API_KEY",)),
    ),
    "ollama": ("OLLAMA_API_KEY", Facts("http://localhost:11434/v1/chat/completions", {"authorization": BEARER})),
    "vllm": ("VLLM_API_KEY", Facts("http://localhost:8000/v1/chat/completions", {"authorization": BEARER})),
    "bifrost": ("BIFROST_API_KEY", Facts("http://localhost:8080/v1/chat/completions", {"authorization": BEARER})),
    "cloudflare": (
        "PROVIDER_API_KEY",
        Facts(
            "https://gateway.ai.cloudflare.com/v1/acc1/default/compat/chat/completions",
            {"authorization": BEARER, "cf-aig-authorization": "Bearer cf-token"},
            tuple(CLOUDFLARE),
            more=CLOUDFLARE,
        ),
    ),
    "kong": ("KONG_API_KEY", Facts(None, {"apikey": SECRET}, ("KONG_BASE_URL",), path="")),
    "litellm": (
        "LITELLM_API_KEY",
        Facts("http://localhost:4000/v1/chat/completions", {"authorization": BEARER}, ("LITELLM_API_KEY",)),
    ),
    "mlflow": (
        "MLFLOW_API_KEY",
        Facts("http://localhost:5000/gateway/mlflow/v1/chat/completions", {"authorization": BEARER}),
    ),
    "portkey": (
        "PROVIDER_API_KEY",
        Facts(
            "https://api.portkey.ai/v1/chat/completions",
            {"authorization": BEARER, "x-portkey-api-key": "pk-1", "x-portkey-provider": "openai"},
            tuple(PORTKEY),
            more=PORTKEY,
        ),
    ),
    "vercel": (
        "AI_GATEWAY_API_KEY",
        Facts("https://ai-gateway.vercel.sh/v1/chat/completions", {"authorization": BEARER}, ("AI_GATEWAY_API_KEY",)),
    ),
}
"""By name: the variable of its key, and the facts."""

CASES = [pytest.param(name, key, facts, id=name) for name, (key, facts) in KNOWN.items()]
OWN = {"accept", "accept-encoding", "connection", "content-length", "content-type", "host", "user-agent"}
"""Headers of the HTTP client itself."""


@dataclass
class Server:
    """What has arrived: request lines and headers."""

    base_url: str = ""
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keep one request and answer it."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        await reader.readexactly(int(headers["content-length"]))
        self.paths.append(first.split()[1])
        self.headers.append({name: value for name, value in headers.items() if name not in OWN})
        body = json.dumps(REPLY).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def listening() -> AsyncIterator[Server]:
    """A server on a free port."""
    found = Server()
    server = await asyncio.start_server(found.answer, "127.0.0.1", 0)
    found.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield found


async def call(model: Model, environment: Mapping[str, str]) -> None:
    """One call as a worker makes it."""
    request = ModelRequest(
        model=model.name, instructions="", messages=(UserMessage(role="user", parts=text("Hi."), id="m0"),)
    )
    async with make_client() as http:
        reply = await Exchange(http, environment).complete(model, request, lambda _: None)
    assert reply.parts == (RawText("ok"),)


def refused(model: Model, environment: Mapping[str, str]) -> str:
    """What is said of a model that cannot be used."""
    with pytest.raises(ProviderError) as told:
        endpoint_of(model, "/chat/completions", environment)
    assert told.value.kind is ErrorKind.CONFIGURATION
    assert SECRET not in str(told.value)
    assert model.label in str(told.value)
    return str(told.value)


def test_every_preset_is_in_the_table() -> None:
    """No preset goes unchecked, and each takes its address from a variable of its name."""
    assert {entry.name for entry in PRESETS} == KNOWN.keys()
    assert all(entry.base_url_env == f"{entry.name.upper()}_BASE_URL" for entry in PRESETS)


@pytest.mark.parametrize(("name", "key", "facts"), CASES)
async def test_what_is_sent(name: str, key: str, facts: Facts) -> None:
    """A call goes to the documented path with exactly the documented headers."""
    async with listening() as server:
        prefix = urlsplit(facts.url or "http://x/route").path.removesuffix(facts.path)
        environment = {f"{name.upper()}_BASE_URL": server.base_url + prefix, key: SECRET, **facts.more}
        await call(Model(provider=name, name="m"), environment)
        assert server.paths == [f"{prefix}{facts.path}"]
        assert server.headers == [facts.headers]


@pytest.mark.parametrize(("name", "key", "facts"), [case for case in CASES if KNOWN[str(case.id)][1].url])
def test_where_it_goes_by_itself(name: str, key: str, facts: Facts) -> None:
    """Without a variable for its address a preset goes to the documented one."""
    endpoint = endpoint_of(Model(provider=name, name="m"), "/chat/completions", {key: SECRET, **facts.more})
    assert endpoint.url == facts.url


@pytest.mark.parametrize(("name", "key", "facts"), CASES)
def test_what_is_missing(name: str, key: str, facts: Facts) -> None:
    """Every variable that a preset cannot do without is named, with what to do; blank counts as missing."""
    model = Model(provider=name, name="m")
    if not facts.needs:
        assert not endpoint_of(model, "/chat/completions", {}).headers.keys() & {"authorization", "apikey"}
        return
    for environment in ({}, dict.fromkeys(facts.needs, " ")):
        said = refused(model, environment)
        assert all(variable in said for variable in facts.needs)
        assert "set " in said


@pytest.mark.parametrize(("name", "key", "facts"), CASES)
async def test_api_key_env(name: str, key: str, facts: Facts) -> None:
    """A variable that a model names for its key is used instead of the preset's, in the same header, and required."""
    model = Model(provider=name, name="m", api_key_env="TEAM_KEY")
    async with listening() as server:
        base = {f"{name.upper()}_BASE_URL": server.base_url, key: "other", **facts.more}
        await call(model, {**base, "TEAM_KEY": f" {SECRET}\n"})
        assert server.headers == [facts.headers]
    assert "TEAM_KEY" in refused(model, base)


CALLED = sorted(REGISTRY.keys() - {"scripted", "recorded"})


@pytest.mark.parametrize("name", CALLED)
def test_every_header_of_a_key(name: str) -> None:
    """A key goes bare into any header but `authorization`; a model's own value of it wins, in any spelling."""
    entry = REGISTRY[name]
    base = {"MINE": "value", "TEAM_KEY": SECRET, **CLOUDFLARE, **PORTKEY}
    url = "http://127.0.0.1:1"
    given = endpoint_of(Model(provider=name, name="m", base_url=url, api_key_env="TEAM_KEY"), "/", base).headers
    assert given[entry.key_header] == (BEARER if entry.key_header == "authorization" else SECRET)
    model = Model(provider=name, name="m", base_url=url, headers={entry.key_header.title(): "Own ${MINE}"})
    for environment in (base, {**base, entry.api_key_env or "": SECRET}):
        headers = endpoint_of(model, "/", environment).headers
        assert headers[entry.key_header] == "Own value"
        assert not any(SECRET in value for value in headers.values())


@pytest.mark.parametrize("spelling", ["x-portkey-provider", "X-Portkey-Provider"])
async def test_own_headers_win(spelling: str) -> None:
    """A model's header replaces the preset's whatever its case, and what the preset named is not needed any more."""
    async with listening() as server:
        headers = {spelling: "@team", "X-PORTKEY-API-KEY": "${TEAM_KEY}", "x-more": "1"}
        model = Model(provider="portkey", name="m", base_url=server.base_url, headers=headers)
        await call(model, {"TEAM_KEY": "k"})
        assert server.headers == [{"x-portkey-provider": "@team", "x-portkey-api-key": "k", "x-more": "1"}]


async def test_no_key_beside_an_own_authorization() -> None:
    """A model that brings its own authorization gets no key of the worker's in another header."""
    async with listening() as server:
        model = Model(
            provider="kong", name="m", base_url=server.base_url, headers={"Authorization": "Bearer ${ROUTE_TOKEN}"}
        )
        await call(model, {"ROUTE_TOKEN": "t", "KONG_API_KEY": SECRET})
        assert server.headers == [{"authorization": "Bearer t"}]


@pytest.mark.parametrize(
    ("value", "environment", "sent"),
    [
        ("${TEAM:-default}", {}, "default"),
        ("${TEAM:-default}", {"TEAM": ""}, "default"),
        ("${TEAM:-default}", {"TEAM": "blue"}, "blue"),
        ("${TEAM:-}", {}, ""),
        ("a ${TEAM} b ${PLACE:-c}", {"TEAM": "blue"}, "a blue b c"),
        ("${TEAM}", {"TEAM": "${PLACE}", "PLACE": "x"}, "${PLACE}"),
        ("$TEAM ${1}", {"TEAM": "blue"}, "$TEAM ${1}"),
    ],
)
def test_variables(value: str, environment: dict[str, str], sent: str) -> None:
    """`${NAME}` and `${NAME:-default}` are filled in once; everything else stays as it is."""
    model = Model(provider="ollama", name="m", headers={"x-team": value})
    assert endpoint_of(model, "/", environment).headers == {"x-team": sent}


def test_the_gateway_of_cloudflare_can_be_named() -> None:
    """A part of an address that has a default can be set."""
    environment = {**CLOUDFLARE, "CLOUDFLARE_GATEWAY": "team"}
    url = endpoint_of(Model(provider="cloudflare", name="openai/m"), "/chat/completions", environment).url
    assert url == "https://gateway.ai.cloudflare.com/v1/acc1/team/compat/chat/completions"


def test_all_that_is_missing_is_named_at_once() -> None:
    """A header's variable, the address's and the key's are in one message, each once."""
    headers = {"x-a": "${A} ${A}", "x-b": "${B:-there}"}
    said = refused(Model(provider="cloudflare", name="m", headers=headers, api_key_env="TEAM_KEY"), {})
    assert "set CLOUDFLARE_ACCOUNT_ID and CLOUDFLARE_API_TOKEN and A and TEAM_KEY in the environment" in said


WRONG: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("KONG_BASE_URL", {}, {"KONG_BASE_URL": f"http://user:{SECRET}@127.0.0.1/r"}),
    ("KONG_BASE_URL", {}, {"KONG_BASE_URL": f"ftp://user:{SECRET}@127.0.0.1/r"}),
    ("KONG_BASE_URL", {}, {"KONG_BASE_URL": SECRET}),
    ("KONG_API_KEY", {}, {"KONG_BASE_URL": "http://h", "KONG_API_KEY": f"{SECRET}é"}),
    ("KONG_API_KEY", {}, {"KONG_BASE_URL": "http://h", "KONG_API_KEY": f"{SECRET}\nx: y"}),
    ("KONG_API_KEY", {}, {"KONG_BASE_URL": "http://h", "KONG_API_KEY": f"{SECRET}\x00"}),
    ("TEAM", {"headers": {"x-team": "${TEAM}"}}, {"KONG_BASE_URL": "http://h", "TEAM": f"{SECRET}\r\nx: y"}),
]


@pytest.mark.parametrize(("variable", "fields", "environment"), WRONG, ids=range(len(WRONG)))
def test_a_variable_that_cannot_be_used(variable: str, fields: dict[str, Any], environment: dict[str, str]) -> None:
    """It is named, no call is made, and its value is not shown."""
    assert variable in refused(Model(provider="kong", name="m", **fields), environment)


@pytest.mark.parametrize("address", [f"http://user:{SECRET}@h/v1", f"https://{SECRET}@h"])
def test_credentials_in_an_address(address: str) -> None:
    """They would be recorded in every run, so a model refuses them, and does not show them."""
    with pytest.raises(ConfigError, match="api_key_env") as told:
        Model(provider="kong", name="m", base_url=address)
    assert SECRET not in str(told.value)
