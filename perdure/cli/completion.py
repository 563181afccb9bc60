"""What the shell offers for an argument: asked of the server, briefly, and in silence where it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import redirect_stderr, suppress
from io import StringIO

import typer
from pydantic import BaseModel

from perdure.client import OPEN, Client, quoted
from perdure.handle import Handle

WAIT = 2.0
"""Seconds that somebody who has pressed Tab waits at most."""
MOST = 50
LOOKED_AT = 200
"""Newest runs whose agents are offered."""


def run_ids(incomplete: str) -> list[str]:
    """Ids of runs, the newest first."""
    return _ask(lambda client: _ids(client, incomplete, None))


def open_run_ids(incomplete: str) -> list[str]:
    """Ids of runs that can still be spoken to."""
    return _ask(lambda client: _ids(client, incomplete, OPEN))


def waiting_run_ids(incomplete: str) -> list[str]:
    """Ids of runs that wait for an approval."""
    return _ask(lambda client: _ids(client, incomplete, f"PerdureState='waiting_approval' AND {OPEN}"))


def call_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Calls of the named run that wait for a decision."""
    return _of_run(ctx, incomplete, lambda handle: handle.approvals(), "call_id")


def question_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Questions of the named run that wait for an answer."""
    return _of_run(ctx, incomplete, lambda handle: handle.questions(), "question_id")


def agents(incomplete: str) -> list[str]:
    """Agents of the newest runs: the server knows no others."""

    async def look(client: Client) -> list[str]:
        found = {run.agent for run in await client.list(limit=LOOKED_AT) if run.agent}
        return sorted(name for name in found if name.startswith(incomplete))

    return _ask(look)


async def _ids(client: Client, incomplete: str, only: str | None) -> list[str]:
    begins = f"WorkflowId STARTS_WITH '{quoted(incomplete)}'" if incomplete else None
    query = " AND ".join(term for term in (begins, only) if term)
    return [run.id for run in await client.list(query or None, MOST)]


def _of_run(
    ctx: typer.Context, incomplete: str, ask: Callable[[Handle], Awaitable[Sequence[BaseModel]]], field: str
) -> list[str]:
    async def look(client: Client) -> list[str]:
        found = [str(getattr(item, field)) for item in await ask(client.handle(ctx.params["id"]))]
        return [id for id in found if id.startswith(incomplete)]

    return _ask(look) if ctx.params.get("id") else []


def _ask(look: Callable[[Client], Awaitable[list[str]]]) -> list[str]:
    from perdure.cli.session import with_client  # it names these functions itself

    async def briefly(client: Client) -> list[str]:
        return await asyncio.wait_for(look(client), WAIT)

    with suppress(Exception), redirect_stderr(StringIO()):
        return with_client(briefly, within=WAIT)
    return []
