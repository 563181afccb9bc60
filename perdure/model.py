"""Which model answers: provider, name and how to reach it."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from perdure.canonical import canonical_json
from perdure.credentials import credential_headers, credential_params, has_credentials
from perdure.errors import ConfigError
from perdure.own_providers import PROVIDER_NAME, PROVIDERS, own_providers
from perdure.settings import Settings, must

NAMELESS = frozenset({"scripted"})
"""Providers that have only one model."""

MOST_MODELS = 6
"""Of a chain: a call is attempted six times."""

_ADDRESS = re.compile(r"https?://[^\s/?#@:][^\s/?#@]*([/?#]\S*)?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    if not all(_HEADER_NAME.fullmatch(name) for name in headers):
        raise ValueError("names must be letters, digits and hyphens, such as 'x-team'")
    if broken := [name for name, value in headers.items() if _CONTROL.search(value)]:
        raise ValueError(f"the value of {broken[0]!r} must be one line without control characters")
    if secret := credential_headers(headers):
        raise ValueError(
            f"{secret[0]!r} holds a credential, which would be recorded in every run; "
            "put it into the worker's environment and write ${NAME}"
        )
    return headers


def _check_params(params: dict[str, Any]) -> dict[str, Any]:
    try:
        canonical_json(params)
    except (TypeError, ValueError) as error:
        raise ValueError(f"must be JSON ({error})") from None
    if secret := next(credential_params(params), None):
        raise ValueError(
            f"{secret!r} holds a credential, which would be recorded in every run; "
            "put it into the worker's environment and name its variable in api_key_env or as ${NAME} in headers"
        )
    return params


class Price(Settings):
    """US dollars for a million tokens; cached input costs like input where it is not given."""

    input: Decimal = Field(ge=0)
    output: Decimal = Field(ge=0)
    cached: Decimal | None = Field(None, ge=0)


Address = Annotated[
    str,
    AfterValidator(
        must(lambda url: not has_credentials(url), "not hold a user or password; name a variable in api_key_env")
    ),
    AfterValidator(
        must(_ADDRESS.fullmatch, "begin with http:// or https:// and have a host, such as http://127.0.0.1:8000/v1")
    ),
]


class Model(Settings):
    """A model at a provider. Keys and addresses come from the worker's environment; a spec never holds a key."""

    provider: Annotated[str, AfterValidator(must(PROVIDER_NAME.fullmatch, "be a provider's name, such as 'openai'"))]
    """Which are known is checked where an agent is made: a worker that has not all of them must still read its run."""
    name: str = ""
    base_url: Address | None = None
    path: Annotated[str, AfterValidator(must(lambda path: path[:1] in ("", "/"), "begin with /"))] | None = None
    """Instead of the provider's own path below `base_url`."""
    headers: Annotated[dict[str, str], AfterValidator(_check_headers)] = Field(default_factory=dict)
    """Values may name variables of the worker's environment: `{"x-team": "${TEAM}"}`."""
    api_key_env: (
        Annotated[
            str,
            AfterValidator(
                must(_VARIABLE_NAME.fullmatch, "be the name of a variable that holds the key, not the key itself")
            ),
        ]
        | None
    ) = None
    """Name of the variable that holds the key, where it is not the provider's usual one."""
    params: Annotated[dict[str, Any], AfterValidator(_check_params)] = Field(default_factory=dict)
    """Sent to the provider as they are."""
    price: Price | None = None
    unknown_price: Literal["deny", "worst_case", "ignore"] = "deny"
    """Where nobody knows the price: make no call under a limit on cost, count the dearest known, or count nothing."""
    images: bool | None = None
    """Whether it reads pictures and documents, where what is known of it is wrong."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.name and self.provider not in NAMELESS:
            raise ValueError(f"name: must say which model of {self.provider!r}, such as 'gpt-5-mini'")
        return self

    @property
    def label(self) -> str:
        """`provider:name`, as it is written and shown."""
        return f"{self.provider}:{self.name}" if self.name else self.provider


def parse_model(value: Any) -> Model:
    """A Model from `"provider:name"`, a mapping or a Model; raises ConfigError, for an unknown provider too."""
    model = value if isinstance(value, Model) else _read(value)
    known = PROVIDERS | own_providers.keys()
    if model.provider not in known:
        raise ConfigError(f"model: provider: must be one of {', '.join(sorted(known))}, not {model.provider!r}")
    return model


def _read(value: Any) -> Model:
    fields = value
    if isinstance(value, str):
        provider, separator, name = value.partition(":")
        fields = {"provider": provider, "name": name} if separator or provider in NAMELESS else None
    if not isinstance(fields, dict):
        raise ConfigError(f"model: {value!r} is not 'provider:model' (such as 'openai-chat:gpt-5-mini') nor a Model")
    try:
        return Model(**fields)
    except ConfigError as error:
        raise ConfigError(str(error).replace("Model", "model", 1)) from None


def parse_models(value: Any) -> tuple[Model, ...]:
    """A chain of models from one or a list of what `parse_model` takes; raises ConfigError."""
    items = value if isinstance(value, list | tuple) else [value]
    if not 1 <= len(items) <= MOST_MODELS:
        raise ConfigError(f"model: must be a model, or a list of 1 to {MOST_MODELS}")
    return tuple(parse_model(item) for item in items)
