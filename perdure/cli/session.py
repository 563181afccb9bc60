"""What every command shares: the connection, the user's name, and values that are given as text."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from perdure.cli import completion
from perdure.client import Client
from perdure.errors import ConfigError
from perdure.worker_settings import WorkerSettings

T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
RunId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The run: its workflow id.", show_default=False, autocompletion=completion.run_ids
    ),
]
OpenRunId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The run: its workflow id.", show_default=False, autocompletion=completion.open_run_ids
    ),
]
By = Annotated[
    str | None,
    typer.Option(help="Who decides; recorded, not verified. [default: your user name]", show_default=False),
]


def with_client(work: Callable[[Client], Awaitable[T]], *, within: float | None = None) -> T:
    """Connect as the environment says, in so many seconds, and do the work; raises Unreachable, TimeoutError."""

    # What the connection warns of while it tries again is no message for a user; its errors are.
    quiet = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=quiet)), error_if_already_set=False)

    async def connected() -> T:
        async with asyncio.timeout(within):
            client = await Client.connect(task_queue=settings().task_queue)
        return await work(client)

    return asyncio.run(connected())


def settings() -> WorkerSettings:
    """The `PERDURE_*` variables; raises ConfigError that names the field."""
    return WorkerSettings.parse(os.environ)


def who(by: str | None) -> str | None:
    """The given name, else the user's at the operating system, where that has one."""
    try:
        return by or getpass.getuser()
    except (OSError, KeyError):
        return None


def read_text(given: str, option: str) -> str:
    """An option's text, or what is in the file after `@`; raises ConfigError that names the option."""
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{option}: {given[1:]} cannot be read: {why}") from None


def read_json(given: str | None, option: str) -> Any:
    """A JSON value from an option's text, or from the file after `@`; raises ConfigError that names the option."""
    if given is None:
        return None
    try:
        return json.loads(read_text(given, option))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{option}: this is no JSON: {error}") from None


def read_pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """`name=value` options as a dictionary; raises ConfigError that names the option."""
    pairs: dict[str, str] = {}
    for item in given or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ConfigError(f"{option}: {item!r} is not of the form name=value")
        pairs[name] = value
    return pairs
