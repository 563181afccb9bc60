"""The connection to Temporal, from the standard environment and profile."""

from __future__ import annotations

from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig

from perdure.errors import ConfigError, Unreachable


async def connect(converter: DataConverter) -> Client:
    """A connected client; raises Unreachable that names the address, ConfigError for a broken profile."""
    try:
        config = ClientConfig.load_client_connect_config()
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the Temporal configuration cannot be read: {error}") from error
    config.setdefault("target_host", "localhost:7233")
    try:
        return await Client.connect(**config, data_converter=converter)
    except (RuntimeError, OSError) as error:
        raise Unreachable(
            f"no Temporal server answers at {config['target_host']}; "
            "start one with `perdure dev`, or set TEMPORAL_ADDRESS"
        ) from error
