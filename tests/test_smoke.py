"""`make smoke`: what it says of a good server, of bad ones and of mistakes; never with a traceback or a key."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from bench.smoke import CHECKS
from tests.checkout import ROOT
from tests.fake_chat import Answer, FakeChat, fake_chat
from tests.fake_model import KEY, NAME, fake_model, refusal

LINE = re.compile(
    r"(?P<name>.{18}) (?P<mark>ok|FAILED) +(?P<tokens>\d+) tokens "
    r"+(?P<cost>\$\d+\.\d{5}|unknown) +\d+\.\d s  (?P<told>.+)"
)
CALLS = [name for name in CHECKS if name != "a run"]
"""Checks that make calls and no run, which would be tried again for a while."""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Smoke:
    """How the command has ended."""

    code: int
    out: str
    err: str

    @property
    def table(self) -> dict[str, dict[str, str]]:
        """The line of each check."""
        found = [LINE.fullmatch(line) for line in self.out.splitlines()[:-1]]
        return {match["name"].strip(): match.groupdict() for match in found if match}

    @property
    def summary(self) -> str:
        """The last line."""
        return self.out.splitlines()[-1]


async def smoke(*arguments: str, **environment: str) -> Smoke:
    """Run the command as `make` does."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.smoke", *arguments),
        cwd=ROOT,
        env={**kept, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = (stream.decode() for stream in await process.communicate())
    assert "Traceback" not in out + err
    assert not [value for name, value in environment.items() if name.endswith("_KEY") and value in out + err]
    return Smoke(process.returncode or 0, out, err)


async def calls(provider: str, url: str, **environment: str) -> Smoke:
    """All checks but the run."""
    only = [argument for name in CALLS for argument in ("--only", name)]
    return await smoke(provider, NAME, "--url", url, *only, **environment)


async def test_a_good_server_passes_every_check() -> None:
    """A line for each with what it has shown and cost, the sum, and exit code 0."""
    async with fake_model() as fake:
        done = await smoke("openai-chat", NAME, "--url", fake.base_url, OPENAI_API_KEY=KEY)
    assert done.code == 0, done.out
    assert list(done.table) == list(CHECKS)
    assert {line["mark"] for line in done.table.values()} == {"ok"}
    told = {name: line["told"] for name, line in done.table.items()}
    assert told == {
        "completion": "ready",
        "streaming": "30 pieces",
        "tools": "1 call, add",
        "structured output": '{"capital": "Oslo"}',
        "images": "Red",
        "unknown model": "not_found",
        "wrong key": "authentication",
        "a run": "2 steps, 1 call",
    }
    used = {name for name, line in done.table.items() if int(line["tokens"])}
    paid = {name for name, line in done.table.items() if float(line["cost"].removeprefix("$"))}
    assert used == paid == CHECKS.keys() - {"unknown model", "wrong key"}
    total = sum(float(line["cost"].removeprefix("$")) for line in done.table.values())
    summary = re.fullmatch(rf"openai-chat:{NAME}: 8 of 8 checks passed, cost: \$(\d\.\d{{5}})", done.summary)
    assert summary
    assert float(summary[1]) == pytest.approx(total, abs=0.00005)


async def test_a_server_that_answers_nonsense_fails_every_check() -> None:
    """Each with what it said instead, and exit code 1."""
    async with fake_chat({"text": "Sorry.", "usage": None}) as fake:
        done = await smoke("openai-chat", NAME, "--url", fake.base_url, OPENAI_API_KEY=KEY)
    assert done.code == 1
    assert {name: line["told"] for name, line in done.table.items()} == {
        "completion": "it said 'Sorry.'",
        "streaming": "it said 'Sorry.'",
        "tools": "it called no tool",
        "structured output": "it is not JSON: 'Sorry.'",
        "images": "it said 'Sorry.'",
        "unknown model": "it was answered",
        "wrong key": "it was answered",
        "a run": "success: 'Sorry.'",
    }
    assert {line["mark"] for line in done.table.values()} == {"FAILED"}
    assert "0 of 8 checks passed" in done.summary


async def test_a_server_that_repeats_the_key_does_not_show_it() -> None:
    """Nor the one that it was sent in place of the right one."""

    def repeat(body: dict[str, Any]) -> Answer:
        return refusal(400, f"{fake.headers[-1]['authorization']} {KEY} is bad")

    async with fake_chat(repeat) as fake:
        done = await smoke("openai-chat", NAME, "--url", fake.base_url, OPENAI_API_KEY=KEY)
    assert done.code == 1
    assert list(done.table) == list(CHECKS)
    assert "0123456789abcdef" not in done.out + done.err
    assert done.err == ""
    assert done.table["completion"]["told"].startswith("invalid_request: openai-chat: HTTP 400: ")
    assert all(line["told"].strip() for line in done.table.values())


ODD: dict[str, Answer] = {
    "a list for an object": {"text": "[]"},
    "a call with a list": {"calls": [{"tool": "add", "arguments": "[1]"}]},
    "a call with nonsense": {"calls": [{"tool": "add", "arguments": "{"}]},
    "another tool": {"calls": [{"tool": "rm", "arguments": {}}]},
    "nothing": {"text": ""},
    "a broken connection": {"text": "a", "cut": 1},
    "a failure": {"status": 500},
    "too many requests": {"status": 429},
    "a page": {"status": 200, "body": "<html>"},
    "a redirection": {"status": 302},
}


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
async def test_a_server_that_is_odd_is_told_of_in_words(answer: Answer) -> None:
    """Whatever it does, every check has its line and its reason."""
    async with fake_chat(answer) as fake:
        done = await calls("openai-chat", fake.base_url, OPENAI_API_KEY=KEY)
    assert done.code == 1
    assert list(done.table) == CALLS
    assert all(re.search("[a-z]{2}", line["told"]) for line in done.table.values())
    assert done.table["completion"]["mark"] == "FAILED"


async def test_no_server() -> None:
    """Connections that are refused are a failure of each check."""
    async with fake_chat() as fake:
        gone = fake.base_url
    done = await calls("openai-chat", gone, OPENAI_API_KEY=KEY)
    assert done.code == 1
    assert {line["mark"] for line in done.table.values()} == {"FAILED"}
    assert done.table["completion"]["told"].startswith("connection: 127.0.0.1:")


async def test_a_key_that_is_not_set_is_named() -> None:
    """With where to set it."""
    done = await smoke("openai-chat", NAME, "--only", "completion")
    assert done.code == 1
    assert "set OPENAI_API_KEY in the environment" in done.out


async def served_without_keys(fake: FakeChat) -> Smoke:
    """The checks of a server of one's own."""
    return await smoke("compatible", "own-model", "--url", fake.base_url, "--only", "completion", "--only", "wrong key")


async def test_a_server_of_ones_own_needs_no_key_and_has_no_price() -> None:
    """What cannot be tried is no failure, and what nobody knows is not shown as nothing."""
    async with fake_chat({"text": "ready"}) as fake:
        done = await served_without_keys(fake)
    assert done.code == 0, done.out
    assert done.table["wrong key"]["told"] == "not tried: no key is set, and none is needed"
    assert done.table["completion"]["cost"] == "unknown"
    assert done.summary.endswith("cost: unknown")


WRONG: list[tuple[list[str], str]] = [
    (["opnai", NAME], "smoke: model: provider: must be one of anthropic, "),
    (["OpenAI", NAME], "smoke: model: provider: must be a provider's name"),
    (["openai", ""], "smoke: model: "),
    (["openai", NAME, "--url", "localhost:8000"], "begin with http:// or https://"),
    (["scripted", "x"], "smoke: provider 'scripted' plays answers"),
    (["recorded", "x"], "smoke: provider 'recorded' plays answers"),
    (["openai"], "required: model"),
    (["openai", NAME, "--only", "singing"], "invalid choice: 'singing'"),
]


@pytest.mark.parametrize(("arguments", "told"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
async def test_what_cannot_be_tried_is_told_at_once(arguments: list[str], told: str) -> None:
    """A mistake in the command is exit code 2, and nothing is tried."""
    done = await smoke(*arguments, OPENAI_API_KEY=KEY)
    assert done.code == 2
    assert told in done.err
    assert done.out == ""


def test_make_asks_for_a_provider_and_a_model() -> None:
    """Without them it says how."""
    make = shutil.which("make")
    assert make
    made = subprocess.run(
        [make, "-n", "smoke", "PROVIDER=openai", f"MODEL={NAME}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"-m bench.smoke openai {NAME}" in made.stdout
