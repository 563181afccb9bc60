"""The command line: one table of commands, and one place where errors become a line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from perdure.cli import decisions, export, following, replay, runs, serve, setup
from perdure.cli.output import note, note_json, show
from perdure.embedded import EmbeddedServerError
from perdure.errors import ConfigError, InvalidInput, PerdureError, Unreachable

COMMANDS: Mapping[str, Callable[..., Any]] = {
    "dev": serve.dev,
    "worker": serve.worker,
    "run": following.run,
    "list": runs.list_runs,
    "show": runs.show_run,
    "events": following.events,
    "approvals": decisions.approvals,
    "approve": decisions.approve,
    "deny": decisions.deny,
    "decision-key": decisions.decision_key,
    "say": decisions.say,
    "answer": decisions.answer,
    "extend": decisions.extend,
    "stop": decisions.stop,
    "cancel": decisions.cancel,
    "replay": replay.replay,
    "export": export.export,
    "init": setup.init,
    "doctor": setup.doctor,
}

CODES: Sequence[tuple[type[PerdureError], int]] = (
    (ConfigError, 2),
    (InvalidInput, 2),
    (Unreachable, 3),
    (EmbeddedServerError, 3),
    (PerdureError, 1),
)
"""Exit codes of errors, the first match counts: 1 it did not succeed, 2 usage, 3 cannot connect."""

INTERRUPTED = 130


def _show_version(wanted: bool) -> None:
    if wanted:
        show(f"perdure {version_of_package()}")
        raise typer.Exit


def version_of_package() -> str:
    """The version of the installed package, or `(checkout)`."""
    try:
        return version("perdure")
    except PackageNotFoundError:
        return "(checkout)"


def make_app() -> typer.Typer:
    """The commands as one program."""
    app = typer.Typer(
        name="perdure",
        help="LLM agents as durable workflows on Temporal.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name, command in COMMANDS.items():
        app.command(name)(command)
    return app


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code.

    An error of Perdure is one line on standard error; where the command has `--json` it is one JSON object there.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what a terminal's encoding lacks must not end a command
            stream.reconfigure(errors="replace")
    try:
        make_app()(args=list(arguments), prog_name="perdure")
    except PerdureError as error:
        code = next(code for kind, code in CODES if isinstance(error, kind))
        if "--json" in arguments:
            note_json({"error": str(error), "type": type(error).__name__, "code": code})
        else:
            note(error)
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    finally:
        sys.stdout.flush()
    return 0
