"""Names of providers: those that Perdure brings, and an author's own, which are one function each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from perdure.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

PROVIDERS = frozenset(
    {
        "anthropic", "bifrost", "cloudflare", "compatible", "deepseek", "gemini", "groq", "kong", "litellm",
        "mlflow", "moonshot", "ollama", "openai", "openai-chat", "openrouter", "portkey", "recorded", "scripted",
        "vercel", "vllm",
    }
)  # fmt: skip
"""What `provider` may be beside an author's own; the wire formats behind these names are not known here."""
PROVIDER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@dataclass(frozen=True)
class OwnProvider:
    """A registered function; `streams` where it takes a second argument, which shows text as it comes."""

    name: str
    complete: Callable[..., Awaitable[Any]]
    streams: bool


own_providers: dict[str, OwnProvider] = {}
"""By name, as agents files were loaded."""


def provider(name: str) -> Callable[[F], F]:
    """Register `async complete(request) -> ModelReply` (or a text) as the provider of models `"name:..."`.

    With a second parameter, `async complete(request, show)`, it may call `show(text)` for each piece of the answer. It
    raises ProviderError where it fails: its kind says whether the call is tried again. Raises ConfigError for a name
    that is not lower-case letters, digits, `-` and `_`, or that is taken, and for what is no async function of one or
    two arguments.
    """
    if not isinstance(name, str) or not PROVIDER_NAME.fullmatch(name):
        raise ConfigError(f"provider: {name!r}: a name is 1 to 40 of a-z 0-9 - _ and begins with a letter")
    if name in PROVIDERS:
        raise ConfigError(f"provider {name!r}: Perdure has one of this name; choose another")

    def register(complete: F) -> F:
        is_async: bool = inspect.iscoroutinefunction(complete)  # the check itself would narrow its type
        if not is_async:
            raise ConfigError(f"provider {name!r}: must be an async function, such as async def complete(request)")
        streams = _takes(complete, 2)
        if not streams and not _takes(complete, 1):
            raise ConfigError(f"provider {name!r}: the function must take (request) or (request, show)")
        known = own_providers.get(name)
        if known is not None and _origin(known.complete) != _origin(complete):
            raise ConfigError(f"provider {name!r}: two functions are registered under this name; give one another")
        own_providers[name] = OwnProvider(name, complete, streams)
        return complete

    return register


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _origin(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Where a function was written: a file that is loaded twice, or a cell that runs again, makes it anew."""
    plain: Any = inspect.unwrap(function)
    file = getattr(plain, "__globals__", {}).get("__file__")
    return (file or getattr(plain, "__module__", None), getattr(plain, "__qualname__", plain))
