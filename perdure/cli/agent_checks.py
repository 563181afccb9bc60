"""The checks of `perdure doctor` that need no server: agents, their keys and prices, storage, the embedded binary."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.agent import Agent
from perdure.cli.checks import Check
from perdure.cli.output import counted
from perdure.embedded import find_binary
from perdure.errors import ConfigError, PerdureError, ProviderError
from perdure.messages import Usage, UserMessage, text
from perdure.model import Model
from perdure.own_providers import own_providers
from perdure.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from activities.registry import Registry

SAMPLE = Usage(input_tokens=1_000, output_tokens=1_000)
"""A call whose price is asked for, to learn whether one is known."""
OLD_PRICES_DAYS = 180
SILENT = frozenset({"scripted", "recorded"})
"""Providers that call nobody."""
CALL_WAIT = 60.0
"""Seconds that a model has for the tiny call of `--call`."""
CALL_TOKENS = 64
STORE_WAIT = 30.0
"""Seconds that a store of blobs has for writing, reading and removing a small one."""

SHAPES: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"^\s*$"), "is empty"),
    (re.compile(r"^['\"]|['\"]$"), "has quotes around it; they are part of the value"),
    (re.compile(r"(?i)^bearer\s"), "begins with 'Bearer'; give the key alone"),
    (re.compile(r"\S\s+\S"), "has white space in it"),
    (re.compile(r"[^\x20-\x7e\s]"), "has characters that no key has"),
    (re.compile(r"(?i)^<.*>$|^\$\{?\w+\}?$|\.\.\.|change.?me|your.?(api.?)?key|^x+$|^todo$"), "is a placeholder"),
)
"""What is never a key, and what to say of it; the value itself is never shown."""
PREFIXES: Mapping[str, str] = {"OPENAI_API_KEY": "sk-", "ANTHROPIC_API_KEY": "sk-ant-"}
"""How a vendor's own keys begin; a gateway's may be others."""


def folder_check(folder: Path) -> Check:
    """Whether the data folder can be written and read, or made: proved by something small that is removed again."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
    fix = "a worker keeps large values there; set PERDURE_DATA_DIR to a folder that can be written"
    if not there.is_dir():
        return Check(name="data folder", level="fail", text=f"{folder}: {there} is no folder", fix=fix)
    return _probe(folder, fix) if there == folder.absolute() else _probe_parent(folder, there, fix)


async def store_check(chosen: WorkerSettings, environment: Mapping[str, str]) -> Check:
    """Whether the store of `PERDURE_BLOB_STORE` can be used: proved by a small value that is removed again."""
    from activities.stores.choice import choose_store

    try:
        async with asyncio.timeout(STORE_WAIT):
            store = choose_store(chosen, environment)
            digest = await store.put(secrets.token_bytes(16))  # never a blob that somebody needs
            await store.get(digest)
            await store.delete(digest)
            gone = not await store.exists(digest)
    except PerdureError as error:
        return Check(name="blob store", level="fail", text=str(error), fix="no worker starts until this is mended")
    except TimeoutError:
        return Check(name="blob store", level="fail", text=f"{chosen.blob_store}: no answer within {STORE_WAIT:g} s")
    if not gone:
        return Check(name="blob store", level="warn", text=f"{chosen.blob_store}: what is removed is still there")
    return Check(name="blob store", level="ok", text=f"{chosen.blob_store}: can be written, read and removed")


def _probe(folder: Path, fix: str) -> Check:
    probe = folder / f".doctor-{secrets.token_hex(6)}"
    try:
        try:
            probe.write_bytes(b"probe")
            same = probe.read_bytes() == b"probe"
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return Check(name="data folder", level="fail", text=f"{folder}: {error.strerror}", fix=fix)
    if not same:
        return Check(name="data folder", level="fail", text=f"{folder}: what is written is not what is read", fix=fix)
    return Check(name="data folder", level="ok", text=f"{folder} can be written and read")


def _probe_parent(folder: Path, there: Path, fix: str) -> Check:
    probe = there / f".doctor-{secrets.token_hex(6)}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:  # permissions do not tell: /proc, a file system that is read-only or full
        text = f"{folder}: no folder can be made in {there}: {error.strerror}"
        return Check(name="data folder", level="fail", text=text, fix=fix)
    return Check(name="data folder", level="ok", text=f"{folder} can be made")


def binary_checks() -> Iterator[Check]:
    """Temporal's command line, for the embedded server."""
    try:
        yield Check(name="embedded server", level="ok", text=str(find_binary()))
    except ConfigError as error:
        yield Check(name="embedded server", level="warn", text=str(error), fix="only `dev` and `local` need it")


def load_all(targets: Sequence[str]) -> dict[str, Registry | ConfigError]:
    """The agents of each file or module, or why they cannot be loaded."""
    from activities.registry import Registry, load  # the runtime, found through the launcher's path

    loaded: dict[str, Registry | ConfigError] = {}
    for target in targets:
        registry = Registry()
        try:
            load([target], registry)
            loaded[target] = registry
        except ConfigError as error:
            loaded[target] = error
    return loaded


def queues_of(loaded: Mapping[str, Registry | ConfigError]) -> list[str]:
    """The queues that tools name for themselves."""
    registries = [registry for registry in loaded.values() if not isinstance(registry, ConfigError)]
    return sorted({tool.spec.queue for registry in registries for tool in registry.tools.values() if tool.spec.queue})


async def agent_checks(loaded: Mapping[str, Registry | ConfigError], *, call: bool) -> AsyncIterator[Check]:
    """The agents that were loaded, and whether their models can be called and priced."""
    called: set[str] = set()
    for target, registry in loaded.items():
        if isinstance(registry, ConfigError):
            yield Check(name="agents", level="fail", text=str(registry))
            continue
        yield Check(name="agents", level="ok", text=f"{target}: {', '.join(registry.agents)}")
        for agent in registry.agents.values():
            for model in agent.all_models:
                usable = True
                for check in _model_checks(agent, model, os.environ):
                    usable = usable and check.level != "fail"
                    yield check
                if call and usable and model.model_dump_json() not in called and model.provider not in SILENT:
                    called.add(model.model_dump_json())
                    yield await _call(model)
    if loaded:
        yield _age_of_prices(datetime.now(UTC).date())


def _model_checks(agent: Agent, model: Model, environment: Mapping[str, str]) -> Iterator[Check]:
    from activities.endpoints import endpoint_of, entry_of

    name = f"model of {agent.name}"
    if model.provider in own_providers:
        yield Check(name=name, level="ok", text=f"{model.label} is answered by a function of yours")
        yield from _price_check(name, model)
        return
    try:
        entry = entry_of(model)
        variable = model.api_key_env or entry.api_key_env or ""
        key = environment.get(variable)
        problem = next((told for shape, told in SHAPES if key and shape.search(key)), None)
        if problem is not None:
            level: Any = "fail" if entry.key_required or model.api_key_env else "warn"
            yield Check(name=name, level=level, text=f"{model.label}: {variable} {problem}", fix=f"set {variable} anew")
            if level == "fail":
                return
        if model.provider not in SILENT:
            endpoint_of(model, "", environment)
    except ProviderError as error:
        yield Check(name=name, level="fail", text=str(error))
        return
    yield Check(name=name, level="ok", text=f"{model.label} can be called from here")
    own_address = bool(model.base_url or environment.get(entry.base_url_env or ""))
    begins = PREFIXES.get(variable)
    if key and begins and not own_address and not key.strip().startswith(begins):
        text = f"{variable} does not begin with {begins!r}, as the keys of {entry.name} do"
        yield Check(name=name, level="warn", text=text, fix="prove it: `perdure doctor AGENTS --call`")
    yield from _price_check(name, model)


def _price_check(name: str, model: Model) -> Iterator[Check]:
    from activities.prices import cost_of

    if cost_of(model, SAMPLE) is None:
        text = f"no price is known for {model.label}: its cost counts as zero"
        yield Check(
            name=name, level="warn", text=text, fix="give it one: Model(..., price=Price(input=..., output=...))"
        )


async def _call(model: Model) -> Check:
    """A real call of a few tokens, which proves the key and the address."""
    from activities.exchange import Exchange, Idle
    from activities.http import make_client
    from perdure.model_call import ModelRequest

    asked = ModelRequest(
        model=model.name,
        instructions="",
        messages=(UserMessage(role="user", parts=text("Say: ok")),),
        max_tokens=CALL_TOKENS,
        params=model.params,
    )
    name = f"call of {model.label}"
    async with make_client() as http:
        try:
            async with asyncio.timeout(CALL_WAIT):
                reply = await Exchange(http, os.environ, Idle(CALL_WAIT, CALL_WAIT)).complete(
                    model, asked, lambda _: None
                )
        except ProviderError as error:
            return Check(name=name, level="fail", text=f"{error.kind.value}: {error}")
        except TimeoutError:
            return Check(name=name, level="fail", text=f"no reply within {CALL_WAIT:g} s")
    spent = reply.usage or Usage()
    return Check(name=name, level="ok", text=f"it has answered, {counted(spent.total, 'token')}")


def _age_of_prices(today: date) -> Check:
    """How old the price list is: it carries no date of its own, so its newest dated price stands for one."""
    newest = max((day for day in _dated_prices() if day <= today), default=date.min)
    release = f"genai-prices {version('genai-prices')}"
    days = (today - newest).days
    text = f"the newest dated price of {release} is of {newest}, {counted(days, 'day')} ago"
    if days <= OLD_PRICES_DAYS:
        return Check(name="prices", level="ok", text=text)
    return Check(name="prices", level="warn", text=text, fix="pip install --upgrade genai-prices")


def _dated_prices() -> Iterator[date]:
    """Every day from which on a price of the list counts."""
    from genai_prices.data import providers

    for provider in providers:
        for model in provider.models:
            for price in model.prices if isinstance(model.prices, list) else ():
                day = getattr(price.constraint, "start_date", None)
                if isinstance(day, date):
                    yield day
