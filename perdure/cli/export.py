"""The export of a run's history, for bug reports and for replays elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from temporalio.client import WorkflowHistory

from perdure.cli import completion
from perdure.cli.histories import NotReplayable, fetch, split
from perdure.cli.output import note
from perdure.cli.session import with_client
from perdure.client import Client
from perdure.errors import ConfigError, PerdureError


def export(
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The run: its workflow id, or id:run_id for a certain run of a chain.",
            show_default=False,
            autocompletion=completion.run_ids,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file. (default: standard output)")
    ] = None,
) -> None:
    """Write the history of a run as JSON, with every payload in it.

    It can be attached to a bug report, or kept with tests and replayed with `perdure replay --history FILE`. It
    contains the whole conversation, so look before you share it.

    Example: perdure export inv-42 --output inv-42.json
    """

    async def work(client: Client) -> WorkflowHistory:
        return await fetch(client, *split(id))

    try:
        history = with_client(work)
    except NotReplayable as problem:
        raise PerdureError(f"run {id!r}: {problem}") from None
    # Sorted, for protobuf keeps maps in any order: the same history is the same text.
    text = json.dumps(json.loads(history.to_json()), indent=2, sort_keys=True, ensure_ascii=False)
    if output is None:
        print(text)
    else:
        _write(output, text + "\n")
    note(
        f"the history{f' in {output}' if output else ''} contains the conversation, with all arguments and results of "
        f"tools: look before you share it"
    )


def _write(path: Path, text: str) -> None:
    try:
        # Private: it holds what was said.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"--output: {path} cannot be written: {error.strerror}") from None
