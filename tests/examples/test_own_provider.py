"""The example of an own provider, against a little server that speaks its format."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from activities.registry import Registry, load
from perdure.own_providers import PROVIDERS, own_providers
from tests.checkout import ROOT
from tests.conftest import Serve
from tests.lab import eventually

EXAMPLE = ROOT / "examples" / "own_provider.py"
PAGE = (ROOT / "docs" / "providers.md").read_text()


@dataclass
class Talk:
    """The server: it asks for the stock of bolts once, and then tells what it was given."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    fails: list[int] = field(default_factory=list)
    """Statuses of the next answers, before those that succeed."""

    def answer(self, body: dict[str, Any], key: str | None) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        self.bodies.append(body)
        self.keys.append(key)
        if self.fails:
            return self.fails.pop(0), {"problem": "not now"}
        last = body["turns"][-1]
        if "did" in last:
            return 200, {"says": f"There are {last['says']} bolts.", "does": [], "read": 40, "wrote": 6}
        call = {"skill": "get_stock", "with": {"item": "bolts"}}
        return 200, {"says": "", "does": [call], "read": 20, "wrote": 4}


@contextmanager
def talking() -> Iterator[Talk]:
    """The server on a free port."""
    talk = Talk()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, body = talk.answer(given, self.headers["x-key"])
            payload = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        talk.url = f"http://127.0.0.1:{server.server_address[1]}/talk"
        try:
            yield talk
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Talk]:
    """The server, with its address and a key in the environment."""
    with talking() as found:
        monkeypatch.setenv("TALK_URL", found.url)
        monkeypatch.setenv("TALK_KEY", "k1")
        yield found
    own_providers.pop("talk", None)


def agents() -> list[Any]:
    """The agents of the example, loaded as a worker loads them."""
    registry = Registry()
    load([str(EXAMPLE)], registry)
    return list(registry.agents.values())


def test_it_is_short_and_shown() -> None:
    """A provider, a tool and an agent fit on one screen, and the page shows the whole file."""
    source = EXAMPLE.read_text()
    assert len(source.splitlines()) <= 50
    assert f"```python\n# examples/own_provider.py\n{source}```\n" in PAGE


@pytest.mark.parametrize("source", re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
def test_the_page_is_valid(source: str) -> None:
    """Every Python example of the page compiles, and what it imports of ours is there."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        module = importlib.import_module(str(node.module))
        assert [name.name for name in node.names if not hasattr(module, name.name)] == []


def test_the_page_names_every_preset() -> None:
    """Whoever looks for a server by its name finds it."""
    assert [name for name in PROVIDERS if f"`{name}`" not in PAGE] == []


async def test_it_runs(serve: Serve, talk: Talk) -> None:
    """A call, its result, an answer; tools, conversation, key and usage cross the border."""
    lab = await serve(*agents())
    result = await lab.run("keeper", "How many bolts?")
    assert (result["output"], result["steps"], result["tool_calls"]) == ("There are 120 bolts.", 2, 1)
    assert (result["usage"]["input_tokens"], result["usage"]["output_tokens"]) == (60, 10)
    first, second = talk.bodies
    assert (first["model"], first["task"]) == ("small", "You keep a store.")
    assert [skill["skill"] for skill in first["skills"]] == ["get_stock"]
    assert first["turns"] == [{"who": "user", "says": "How many bolts?", "does": []}]
    assert second["turns"][1:] == [
        {"who": "assistant", "says": "", "does": [{"id": "c1", "skill": "get_stock", "with": {"item": "bolts"}}]},
        {"did": "c1", "says": "120"},
    ]
    assert talk.keys == ["k1", "k1"]


@pytest.mark.parametrize(("status", "outcome"), [(503, "success"), (429, "success"), (400, "failed")])
async def test_failures(serve: Serve, talk: Talk, status: int, outcome: str) -> None:
    """A server that is busy is asked again; one that refuses ends the run with its words."""
    talk.fails.append(status)
    lab = await serve(*agents())
    ended = await lab.run("keeper")
    assert ended["outcome"] == outcome
    assert ("not now" in ended.get("message", "")) == (outcome == "failed")


async def test_without_the_server(serve: Serve, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its absence is a lost connection, which is tried again until the server is back."""
    lab = await serve(*agents())
    with monkeypatch.context() as away:
        away.setenv("TALK_URL", "http://127.0.0.1:1/talk")
        run = await lab.start("keeper")

        async def tried() -> bool:
            found = await run.handle.describe()
            pending = found.raw_description.pending_activities
            return any("talk: ConnectError" in activity.last_failure.message for activity in pending)

        await eventually(tried)
    assert (await run.result())["output"] == "There are 120 bolts."
