"""Where a model is reached and with which key: from the spec and the worker's environment, never from history."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from perdure.errors import ErrorKind, ProviderError
from perdure.model import Model
from providers import REGISTRY, ProviderEntry

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True)
class Endpoint:
    """An address with its headers, credentials included; never logged or recorded."""

    url: str
    headers: Mapping[str, str]


def entry_of(model: Model) -> ProviderEntry:
    """The provider's entry; raises ProviderError where there is none."""
    entry = REGISTRY.get(model.provider)
    if entry is None:
        raise ProviderError(
            ErrorKind.CONFIGURATION,
            f"model {model.label!r}: no provider {model.provider!r}; known: {', '.join(REGISTRY)}",
        )
    return entry


def endpoint_of(model: Model, path: str, environment: Mapping[str, str]) -> Endpoint:
    """Address and headers of a model; raises ProviderError that names the missing variable."""
    entry = entry_of(model)
    base = model.base_url or environment.get(entry.base_url_env or "") or entry.default_base_url
    if not base:
        raise _missing(model, f"set {entry.base_url_env} to the address, such as http://127.0.0.1:8000/v1")
    if not base.startswith(("http://", "https://")):
        raise _missing(model, f"its address must begin with http:// or https://, not {base[:40]!r}")
    headers = {name: _expand(model, value, environment) for name, value in model.headers.items()}
    variable = model.api_key_env or entry.api_key_env
    key = environment.get(variable or "")
    if key and entry.auth == "bearer":
        headers = {"authorization": f"Bearer {key.strip()}", **headers}
    elif (entry.key_required or model.api_key_env) and "authorization" not in {name.lower() for name in headers}:
        raise _missing(model, f"set {variable} in the environment of the worker")
    return Endpoint(f"{base.rstrip('/')}{model.path if model.path is not None else path}", headers)


def _expand(model: Model, value: str, environment: Mapping[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        found = environment.get(match.group(1))
        if found is None:
            raise _missing(model, f"set {match.group(1)} in the environment of the worker")
        return found

    return _VARIABLE.sub(replace, value)


def _missing(model: Model, fix: str) -> ProviderError:
    return ProviderError(ErrorKind.CONFIGURATION, f"model {model.label!r} cannot be used: {fix}")
