"""Registering providers: which names and functions are taken, and which are refused where they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.registry import Registry, load
from perdure import ConfigError, ModelRequest, provider
from perdure.own_providers import PROVIDERS, own_providers

FILE = """
from perdure import Agent, provider

@provider("fromfile")
async def complete(request):
    return "hello"

greeter = Agent("greeter", "fromfile:x")
"""


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """Providers of one test are not those of the next."""
    before = dict(own_providers)
    yield
    own_providers.clear()
    own_providers.update(before)


async def one(request: ModelRequest) -> str:
    """A provider."""
    return "one"


async def other(request: ModelRequest, show: Any = None) -> str:
    """Another."""
    return "other"


def test_names() -> None:
    """A name of Perdure's own, a name that is none, and a second function under a name are refused."""
    for name in PROVIDERS:
        with pytest.raises(ConfigError, match=f"provider '{name}': Perdure has one of this name; choose another"):
            provider(name)
    for wrong in ("", "Mine", "my provider", "mine:m", "1st", "x" * 41, None, 3):
        with pytest.raises(ConfigError, match="begins with a letter"):
            provider(wrong)  # type: ignore[arg-type]
    provider("mine")(one)
    provider("mine")(one)
    with pytest.raises(ConfigError, match="provider 'mine': two functions are registered under this name"):
        provider("mine")(other)
    assert own_providers["mine"].complete is one


def wrong_functions() -> Iterator[Any]:
    """Functions that no provider can be."""

    def plain(request: Any) -> str:
        return ""

    async def none() -> str:
        return ""

    async def three(a: Any, b: Any, c: Any) -> str:
        return ""

    async def keyword(*, request: Any) -> str:
        return ""

    async def stream(request: Any) -> Any:
        yield ""

    yield from (plain, none, three, keyword, stream, 3, "x")


@pytest.mark.parametrize("function", list(wrong_functions()), ids=range(7))
def test_functions(function: Any) -> None:
    """What is no async function of one or two arguments is refused where it is written."""
    with pytest.raises(ConfigError, match=r"provider 'mine': .*(async def complete|\(request, show\))"):
        provider("mine")(function)


def test_arguments_that_are_counted() -> None:
    """Only what can be given by position counts."""

    async def options(request: Any, *, heat: int = 1) -> str:
        return ""

    async def any_of_them(*given: Any) -> str:
        return ""

    for function, streams in ((one, False), (other, True), (options, False), (any_of_them, True)):
        own_providers.clear()
        provider("mine")(function)
        assert own_providers["mine"].streams is streams


def test_a_file_that_is_loaded_twice(tmp_path: Path) -> None:
    """The same file may be loaded again; another file with the same name of a provider is refused."""
    path = tmp_path / "loaded_twice.py"
    path.write_text(FILE)
    for _ in range(2):
        load([str(path)], Registry())
    second = tmp_path / "loaded_beside.py"
    second.write_text(FILE)
    with pytest.raises(ConfigError, match=r"loaded_beside.py: line \d+: provider 'fromfile': two functions"):
        load([str(second)], Registry())
