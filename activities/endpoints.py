"""Where a model is reached and with which key: from the spec and the worker's environment, never from history."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from perdure.credentials import has_credentials
from perdure.errors import ErrorKind, ProviderError
from perdure.model import Model
from perdure.own_providers import own_providers
from providers import REGISTRY, ProviderEntry
from providers.entry import VARIABLE

_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


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
            f"model {model.label!r}: this worker has no provider {model.provider!r}; it has "
            f"{', '.join([*own_providers, *REGISTRY])}. One of your own must be in an agents file of every worker",
        )
    return entry


def endpoint_of(model: Model, path: str, environment: Mapping[str, str]) -> Endpoint:
    """Address and headers of a model; raises ProviderError that names what is missing, and never shows a value."""
    entry = entry_of(model)
    base = model.base_url or environment.get(entry.base_url_env or "", "").strip() or entry.default_base_url
    if not base:
        raise _unusable(model, f"set {entry.base_url_env} to the address, such as http://127.0.0.1:8000/v1")
    given = {name.lower(): value for name, value in (*entry.headers.items(), *model.headers.items())}
    variable = model.api_key_env or entry.api_key_env or ""
    key = environment.get(variable, "").strip()
    own = given.keys() & {entry.key_header, "authorization"}
    named = [base if base == entry.default_base_url else "", *given.values()]
    missing = [name for text in named for name in _unset(text, environment)]
    if not key and not own and (entry.key_required or model.api_key_env):
        missing.append(variable)
    if missing:
        raise _unusable(model, f"set {' and '.join(dict.fromkeys(missing))} in the environment of the worker")
    headers = {name: _expanded(value, environment) for name, value in given.items()}
    if key and (model.api_key_env or not own):
        headers.setdefault(entry.key_header, f"Bearer {key}" if entry.key_header == "authorization" else key)
    for name, value in headers.items():
        if not _HEADER_VALUE.fullmatch(value):
            source = ", ".join(match.group(1) for match in VARIABLE.finditer(given.get(name, ""))) or variable
            raise _unusable(model, f"{source} has characters that the header {name!r} cannot carry; set it anew")
    below = next(given for given in (model.path, entry.path, path) if given is not None)
    address = _expanded(base, environment) if base == entry.default_base_url else base
    source = "base_url" if model.base_url else str(entry.base_url_env)
    return Endpoint(f"{_checked(model, address, source).rstrip('/')}{below}", headers)


def _checked(model: Model, address: str, source: str) -> str:
    """The address; of a wrong one nothing is shown, for it may hold a password."""
    if not address.startswith(("http://", "https://")):
        raise _unusable(model, f"{source} must begin with http:// or https://")
    if has_credentials(address):
        raise _unusable(model, f"{source} must not hold a user or password; name a variable in api_key_env")
    return address


def _unset(text: str, environment: Mapping[str, str]) -> list[str]:
    """The variables that a text names without a default, and that are not there."""
    found = VARIABLE.finditer(text)
    return [m.group(1) for m in found if m.group(2) is None and not environment.get(m.group(1), "").strip()]


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda match: environment.get(match.group(1), "").strip() or match.group(2), text)


def _unusable(model: Model, fix: str) -> ProviderError:
    return ProviderError(ErrorKind.CONFIGURATION, f"model {model.label!r} cannot be used: {fix}")
