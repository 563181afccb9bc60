"""The connection to Temporal, from the standard environment and profile, and its errors as Perdure's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError, RPCStatusCode

from perdure._exit import leave_cleanly
from perdure.errors import ConfigError, InvalidInput, MessageRefused, NoAnswer, NoSuchRun, PerdureError, Unreachable

DEFAULT_ADDRESS = "localhost:7233"
EMBEDDED_NAMESPACE = "default"
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):(\d{1,5})")
MOST_PORT = 65_535
CLOSED = "workflow execution already completed"
"""What the server answers to a message for a closed run."""


async def connect(
    converter: DataConverter = DataConverter.default, *, address: str | None = None, namespace: str | None = None
) -> Client:
    """A connected client; what is not given comes from the environment (`TEMPORAL_ADDRESS`, profile, ...).

    Raises Unreachable that names the address, ConfigError for a broken profile or address.
    """
    try:
        config = ClientConfig.load_client_connect_config()
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the Temporal configuration cannot be read: {error}") from error
    given = {"target_host": address, "namespace": namespace}
    settings = {"target_host": DEFAULT_ADDRESS, **config, **{k: v for k, v in given.items() if v is not None}}
    _check_address(_address_field() if address is None else "address", settings["target_host"])
    return await _open(settings, converter)


def _address_field() -> str:
    """Where the environment has the address from, in the user's words."""
    if os.environ.get("TEMPORAL_ADDRESS"):
        return "TEMPORAL_ADDRESS"
    profile = os.environ.get("TEMPORAL_PROFILE") or "default"
    return f"address of profile {profile!r} in {os.environ.get('TEMPORAL_CONFIG_FILE') or 'temporal.toml'}"


def _check_address(name: str, address: object) -> None:
    """Raise ConfigError that names who has given it; Temporal's own client waits long for some that cannot be."""
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if not found or not 0 < int(found[1]) <= MOST_PORT:
        raise ConfigError(
            f"{name}: {address!r} is no address of a Temporal server; write host:port without a scheme, "
            f"such as {DEFAULT_ADDRESS}"
        )


async def connect_embedded(address: str, converter: DataConverter = DataConverter.default) -> Client:
    """A client of an embedded server, whatever the environment says of another one. Raises Unreachable."""
    return await _open({"target_host": address, "namespace": EMBEDDED_NAMESPACE}, converter)


async def _open(settings: Mapping[str, Any], converter: DataConverter) -> Client:
    leave_cleanly()
    address = settings["target_host"]
    try:
        return await Client.connect(**settings, data_converter=converter)
    except ValueError as error:
        raise ConfigError(f"{address!r} is no address of a Temporal server: {error}") from error
    except (RuntimeError, OSError) as error:
        raise Unreachable(
            f"no Temporal server answers at {address}; start one with `perdure dev`, or set TEMPORAL_ADDRESS"
        ) from error


async def check_namespace(client: Client) -> None:
    """Raise Unreachable where the client's namespace does not exist or does not let us in."""
    with rpc_errors(client):
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))


@contextmanager
def rpc_errors(client: Client, run: str | None = None) -> Iterator[None]:
    """Raise Temporal's errors inside as Perdure's; `run` is the workflow id that the calls are about."""
    try:
        yield
    except RPCError as error:
        raise translate(error, client, run) from error


def translate(error: RPCError, client: Client, run: str | None) -> PerdureError:
    """Perdure's error for an RPC that failed."""
    address = client.service_client.config.target_host
    match error.status:
        case RPCStatusCode.NOT_FOUND if error.message.startswith("Namespace"):
            return Unreachable(f"{address} has no namespace {client.namespace!r}; create it, or set TEMPORAL_NAMESPACE")
        case RPCStatusCode.NOT_FOUND if error.message == CLOSED:
            return MessageRefused(f"run {run!r} has ended")
        case RPCStatusCode.NOT_FOUND if run is not None:
            return NoSuchRun(f"no run {run!r} in namespace {client.namespace!r} of {address}")
        case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNAUTHENTICATED:
            return Unreachable(f"{address} refuses access to namespace {client.namespace!r}: {error.message}")
        case RPCStatusCode.UNAVAILABLE:
            return Unreachable(f"the Temporal server at {address} does not answer: {error.message}")
        case (
            RPCStatusCode.DEADLINE_EXCEEDED
            | RPCStatusCode.CANCELLED
            | RPCStatusCode.FAILED_PRECONDITION
            | RPCStatusCode.RESOURCE_EXHAUSTED  # the run, or the server, is asked too much at once
        ):
            return NoAnswer(f"{f'run {run!r}' if run else address} gave no answer ({error.message.lower()})")
        case RPCStatusCode.INVALID_ARGUMENT:
            return InvalidInput(f"the server refused it: {error.message}")
        case _:
            return PerdureError(f"{address}: {error.message} ({error.status.name.lower()})")
