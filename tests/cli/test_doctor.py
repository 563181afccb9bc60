"""`perdure doctor`: what is wrong with keys, prices, storage, namespaces and workers, and how it is mended."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import httpx2
import pytest
from moto.server import ThreadedMotoServer

from perdure.cli.agent_checks import _age_of_prices, folder_check, store_check
from perdure.embedded import find_binary
from perdure.worker_settings import WorkerSettings
from tests.cli.command_line import CommandLine
from tests.fake_chat import fake_chat

pytestmark = pytest.mark.slow

OPENAI = "from perdure import Agent\na = Agent('a', 'openai-chat:gpt-5-mini')\n"
SECRET = "sk-0123456789abcdef"


def named(checks: list[dict[str, Any]], name: str) -> list[tuple[str, str]]:
    """Level and text of the checks of one name."""
    return [(check["level"], check["text"]) for check in checks if check["name"] == name]


@pytest.fixture
def openai_agents(tmp_path: Path) -> str:
    """An agents file with one agent that needs a key."""
    path = tmp_path / "agents_with_key.py"
    path.write_text(OPENAI)
    return str(path)


KEYS: list[tuple[str, str, str]] = [
    (SECRET, "ok", "openai-chat:gpt-5-mini can be called from here"),
    ("", "fail", "set OPENAI_API_KEY"),
    ("   ", "fail", "OPENAI_API_KEY is empty"),
    (f'"{SECRET}"', "fail", "OPENAI_API_KEY has quotes around it"),
    (f"Bearer {SECRET}", "fail", "OPENAI_API_KEY begins with 'Bearer'"),
    (f"{SECRET} {SECRET}", "fail", "OPENAI_API_KEY has white space in it"),
    (f"{SECRET}é", "fail", "OPENAI_API_KEY has characters that no key has"),
    ("your_api_key", "fail", "OPENAI_API_KEY is a placeholder"),
    ("sk-...", "fail", "OPENAI_API_KEY is a placeholder"),
    ("0123456789abcdef", "warn", "OPENAI_API_KEY does not begin with 'sk-'"),
]


@pytest.mark.parametrize(("key", "level", "said"), KEYS, ids=range(len(KEYS)))
def test_keys(perdure: CommandLine, openai_agents: str, key: str, level: str, said: str) -> None:
    """A key that cannot be one is told by its variable, and never shown."""
    done = perdure("doctor", openai_agents, "--json", code=1 if level == "fail" else 0, OPENAI_API_KEY=key)
    found = named(json.loads(done.stdout), "model of a")
    assert any(at == level and said in text for at, text in found), found
    assert not key.strip() or key.strip() not in done.stdout + done.stderr


async def test_a_real_call(perdure: CommandLine, tmp_path: Path) -> None:
    """`--call` proves each model once by a few tokens; a refused key fails with what the provider said."""
    agents = tmp_path / "called.py"
    agents.write_text(
        "from perdure import Agent\na = Agent('a', 'compatible:m')\nb = Agent('b', 'compatible:m')\n"
        "s = Agent('s', 'scripted:x')\n"
    )
    for answer, code, level, said in (
        ({"text": "ok"}, 0, "ok", "it has answered, 15 tokens"),
        ({"status": 401, "body": {"error": {"message": "bad key"}}}, 1, "fail", "authentication: "),
    ):
        async with fake_chat(answer) as chat:
            given = {"COMPATIBLE_BASE_URL": chat.base_url, "COMPATIBLE_API_KEY": SECRET}
            checks = await asyncio.to_thread(perdure.json, "doctor", str(agents), "--call", code=code, **given)
            ((found, text),) = named(checks, "call of compatible:m")
            assert found == level
            assert said in text
            assert len(chat.requests) == 1
            assert chat.headers[0]["authorization"] == f"bearer {SECRET}"


def write(folder: Path, name: str, source: str) -> str:
    """An agents file."""
    path = folder / name
    path.write_text(source)
    return str(path)


def test_every_model_of_every_agent(perdure: CommandLine, tmp_path: Path) -> None:
    """Those of a chain and of a router too are checked, and what each preset lacks is named."""
    agents = write(
        tmp_path,
        "many_models.py",
        "from perdure import Agent, Router, RoutingRule\n"
        "chain = Agent('chain', ['scripted:x', 'cloudflare:openai/m', 'portkey:m', 'kong:m'])\n"
        "routed = Agent('routed', router=Router(default='groq:m', vision='vercel:m',\n"
        "    rules=[RoutingRule(model='litellm:m', contains='x')]))\n",
    )
    checks = perdure.json("doctor", agents, code=1)
    missing = {
        "chain": [
            "CLOUDFLARE_ACCOUNT_ID and CLOUDFLARE_API_TOKEN in the environment",
            "PORTKEY_API_KEY in the environment",
            "KONG_BASE_URL to the address",
        ],
        "routed": [f"{name} in the environment" for name in ("GROQ_API_KEY", "AI_GATEWAY_API_KEY", "LITELLM_API_KEY")],
    }
    for agent, names in missing.items():
        failed = [text for level, text in named(checks, f"model of {agent}") if level == "fail"]
        assert len(failed) == len(names)
        assert all(any(f"set {name}" in text for text in failed) for name in names), failed


OWN = """
import sys
from perdure import Agent, Model, ModelReply, Price, ProviderError, provider
from perdure.errors import ErrorKind
from perdure.messages import Usage
from perdure.model_call import Finish, RawText

@provider("works")
async def works(request, show):
    show("o")
    return ModelReply((RawText("ok"),), Finish.STOP, Usage(input_tokens=4, output_tokens=3))

@provider("refuses")
async def refuses(request):
    raise ProviderError(ErrorKind.AUTHENTICATION, "who are you?")

@provider("exits")
async def exits(request):
    sys.exit(3)

@provider("mumbles")
async def mumbles(request):
    return 7

a = Agent("a", [Model(provider="works", name="m", price=Price(input=1, output=1)), "refuses:m", "exits:m", "mumbles:m"])
"""


def test_own_providers(perdure: CommandLine, tmp_path: Path) -> None:
    """A function of the author's needs no key and may have a price; `--call` calls it, whatever it does."""
    agents = write(tmp_path, "own_providers.py", OWN)
    found = named(perdure.json("doctor", agents), "model of a")
    assert ("ok", "works:m is answered by a function of yours") in found
    unpriced = [text for level, text in found if level == "warn"]
    assert [name in text for name, text in zip(("refuses:m", "exits:m", "mumbles:m"), unpriced, strict=True)] == [
        True
    ] * 3
    called = {
        check["name"].removeprefix("call of "): (check["level"], check["text"])
        for check in perdure.json("doctor", agents, "--call", code=1)
        if check["name"].startswith("call of ")
    }
    assert called == {
        "works:m": ("ok", "it has answered, 7 tokens"),
        "refuses:m": ("fail", "authentication: who are you?"),
        "exits:m": ("fail", "server: exits: SystemExit: 3"),
        "mumbles:m": ("fail", "configuration: mumbles: it must return a ModelReply or a text, not int"),
    }


def test_prices_grow_old(perdure: CommandLine, openai_agents: str) -> None:
    """The list's newest dated price is told; long after it the list is called old."""
    today = perdure.json("doctor", openai_agents, OPENAI_API_KEY=SECRET)
    ((_, text),) = named(today, "prices")
    assert "the newest dated price of genai-prices" in text
    old = _age_of_prices(date(2036, 1, 1))
    assert (old.level, old.fix) == ("warn", "pip install --upgrade genai-prices")


def test_the_probe_leaves_nothing(tmp_path: Path) -> None:
    """The data folder is written, read and left as it was."""
    found = folder_check(tmp_path)
    assert (found.level, found.text) == ("ok", f"{tmp_path} can be written and read")
    assert list(tmp_path.iterdir()) == []


async def test_the_blob_store(tmp_path: Path) -> None:
    """A bucket is written, read and left empty; one that is not there fails with its name."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
        settings = WorkerSettings(data_dir=tmp_path, blob_store="s3://values/here")

        async def look() -> tuple[str, str]:
            found = await store_check(settings, {**keys, "AWS_ENDPOINT_URL": address})
            return found.level, found.text

        level, text = await look()
        assert level == "fail"
        assert "'values'" in text
        async with httpx2.AsyncClient() as http:
            assert (await http.put(f"{address}/values")).status_code == 200
            assert await look() == ("ok", "s3://values/here: can be written, read and removed")
            assert "<Key>" not in (await http.get(f"{address}/values")).text
    finally:
        server.stop()


def test_short_retention(perdure: CommandLine) -> None:
    """A namespace that forgets after a day is told, with the command that mends it."""
    address = ["--address", perdure.environment["TEMPORAL_ADDRESS"]]
    made = [
        str(find_binary()),
        "operator",
        "namespace",
        "create",
        "--namespace",
        "short",
        "--retention",
        "1d",
        *address,
    ]
    assert subprocess.run(made, capture_output=True, check=False).returncode == 0
    (before,) = [c for c in perdure.json("doctor", TEMPORAL_NAMESPACE="short") if c["name"] == "retention"]
    assert (before["level"], before["text"]) == ("warn", "closed runs are kept 1 day")
    fix = before["fix"].split()
    assert subprocess.run([str(find_binary()), *fix[1:], *address], capture_output=True, check=False).returncode == 0
    (after,) = [c for c in perdure.json("doctor", TEMPORAL_NAMESPACE="short") if c["name"] == "retention"]
    assert (after["level"], after["text"]) == ("ok", "closed runs are kept 90 days")


def test_a_health_check(perdure: CommandLine, bare: CommandLine) -> None:
    """`--here` is 0 while a worker of this machine polls the queue, 1 without one, 3 without a server."""
    (found,) = perdure.json("doctor", "--here")
    assert found["level"] == "ok"
    (missing,) = perdure.json("doctor", "--here", code=1, PERDURE_TASK_QUEUE="deserted-here")
    assert "polls queue 'deserted-here'" in missing["text"]
    bare("doctor", "--here", code=3)


def test_workers_are_named(perdure: CommandLine) -> None:
    """Who polls the queue is told as Temporal knows it."""
    ((level, text),) = named(perdure.json("doctor"), "worker")
    assert level == "ok"
    assert f" is polled by 1 worker: {perdure.processes[0].pid}@" in text


def test_the_queue_of_a_tool(perdure: CommandLine, tmp_path: Path) -> None:
    """A tool whose own queue nobody polls is told before a run waits for it."""
    agents = tmp_path / "queued.py"
    agents.write_text(
        "from perdure import Agent, tool\n@tool(effect='read', queue='gpu')\ndef draw() -> str:\n    'Draw.'\n"
        "    return ''\na = Agent('a', 'scripted:x', tools=[draw])\n"
    )
    ((level, text),) = named(perdure.json("doctor", str(agents)), "worker of tools")
    assert level == "warn"
    assert "no worker is polling queue 'gpu'" in text


ERRORS = [
    (["list"], {"TEMPORAL_ADDRESS": "127.0.0.1:1"}, "Unreachable", 3),
    (["show", "no-such-run"], {}, "NoSuchRun", 1),
    (["list", "--query", "nonsense ("], {}, "InvalidInput", 2),
    (["extend", "no-such-run"], {}, "ConfigError", 2),
]


@pytest.mark.parametrize(("arguments", "environment", "kind", "code"), ERRORS)
def test_errors_as_json(
    perdure: CommandLine, arguments: list[str], environment: dict[str, str], kind: str, code: int
) -> None:
    """With `--json` an error is one object on standard error, and standard output stays empty."""
    done = perdure(*arguments, "--json", code=code, **environment)
    assert done.stdout == ""
    error = json.loads(done.stderr)
    assert (error["type"], error["code"]) == (kind, code)
    assert error["error"]


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The help of every command."""
    from perdure.cli import COMMANDS
    from tests.cli.command_line import make

    made = make(tmp_path_factory.mktemp("help"), "127.0.0.1:1", "q")
    yield {name: made(name, "--help", COLUMNS="200").stdout for name in COMMANDS}
    made.close()


def test_every_command_has_an_example(helps: dict[str, str]) -> None:
    """Its help ends with a command line that begins with its own name, and data can be had as JSON."""
    assert [name for name, text in helps.items() if not re.search(rf"Examples?: perdure {name}\b", text)] == []
    # What `export` writes is JSON by itself.
    assert {name for name, text in helps.items() if "--json" not in text} == {"dev", "worker", "export"}
