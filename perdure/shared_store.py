"""How clients reach the store of large values that their workers use. Imports the runtime only where one is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from temporalio.client import Client
from temporalio.converter import DataConverter

from perdure._launch import add_app_path
from perdure.errors import InvalidInput

MAX_INPUT_BYTES = 2_000_000
"""As JSON; the server refuses payloads a little above it, and an update only after it has harmed its run."""


def check_size(client: Client, value: Any, name: str) -> None:
    """Raise InvalidInput for what is too large to be sent by a client without a store."""
    if client.data_converter.external_storage is None and len(json.dumps(value, default=str)) > MAX_INPUT_BYTES:
        raise InvalidInput(f"{name}: is larger than 2 MB; set PERDURE_BLOB_STORE, or put it where a tool can read it")


def converter_for(environment: Mapping[str, str]) -> DataConverter:
    """With `PERDURE_BLOB_STORE`, one that keeps large values there; else Temporal's own.

    Temporal's own too where another package of the process is named as the runtime's are. Raises ConfigError.
    """
    location = environment.get("PERDURE_BLOB_STORE")
    if not location:
        return DataConverter.default
    before = sys.path.copy()
    try:
        add_app_path()
        from activities.converter import data_converter
        from activities.stores.s3 import S3Store
    except ImportError:
        return DataConverter.default
    finally:
        sys.path[:] = before
    return data_converter(S3Store(location, environment))
