"""The console script: puts the runtime on the import path, runs the command line, and leaves for certain."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from perdure.errors import ConfigError

INTERRUPTED = 130
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def add_app_path() -> Path:
    """Put the folder of `worker`, `workflows`, `activities` and `providers` first on `sys.path` and return it.

    An installed package carries them in `perdure/_app`; in a checkout they lie beside `perdure`.
    """
    package = Path(__file__).resolve().parent
    carried = package / "_app"
    folder = carried if carried.is_dir() else package.parent
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    return folder


def set_log_level(environment: Mapping[str, str]) -> None:
    """Log from the level of `PERDURE_LOG` on; raises ConfigError where it is none."""
    level = environment.get("PERDURE_LOG") or "WARNING"
    if level.upper() not in LOG_LEVELS:
        raise ConfigError(f"PERDURE_LOG: {level!r} is not one of {', '.join(LOG_LEVELS)}")
    logging.basicConfig(level=level.upper())


def main() -> None:
    """Run the command line and exit at once: a process that ran a worker may abort while its interpreter shuts down."""
    add_app_path()
    # While modules load an exception may be lost, for it can be raised inside a callback of the interpreter.
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from perdure.cli import run  # needs the path

    signal.signal(signal.SIGINT, before)
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    with suppress(BrokenPipeError):  # whoever read the output has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
