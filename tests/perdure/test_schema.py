"""Argument schemas of functions and the way back from JSON to Python."""

# ruff: noqa: D103

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import typing
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Optional
from uuid import UUID

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, field_validator

from perdure.arguments import ArgumentError
from perdure.errors import ConfigError
from perdure.schema import describe

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]


class Context:
    """What a caller injects."""


class Color(enum.Enum):
    """Colours."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """Levels."""

    LOW = 1
    HIGH = 2


class Node(BaseModel):
    """A node."""

    title: str
    default: int = 3
    children: list[Node] = []

    @field_validator("title")
    @classmethod
    def no_blank(cls, value: str) -> str:
        """Refuse blanks."""
        if not value.strip():
            raise ValueError("must not be blank")
        return value


class Strict(BaseModel):
    """A model in strict mode."""

    model_config = ConfigDict(strict=True)
    day: dt.date
    color: Color


class Open(BaseModel):
    """Takes more."""

    model_config = ConfigDict(extra="allow")
    x: int


@dataclasses.dataclass
class Point:
    """A point."""

    x: int
    y: int = 0


class Options(typing.TypedDict):
    """Options."""

    a: int
    b: NotRequired[str]


class Partial(typing.TypedDict, total=False):
    """All may be absent."""

    c: list[Options]


def one(annotation: Any, **default: Any) -> Callable[..., Any]:
    """A function with one parameter `x`."""

    def fn(x: Any) -> Any:
        return x

    fn.__annotations__ = {"x": annotation}
    if default:
        fn.__defaults__ = (default["default"],)
    return fn


def property_of(annotation: Any, **default: Any) -> Any:
    return describe(one(annotation, **default)).parameters["properties"]["x"]


@pytest.mark.parametrize(
    ("annotation", "schema", "given", "python"),
    [
        (int, {"type": "integer"}, "5", 5),
        (float, {"type": "number"}, 5, 5.0),
        (bool, {"type": "boolean"}, "true", True),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, "a", "a"),
        (Literal["a"], {"type": "string", "const": "a"}, "a", "a"),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),  # noqa: UP045
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", "5"),
        (dt.date, {"type": "string", "format": "date"}, "2026-01-02", dt.date(2026, 1, 2)),
        (
            dt.datetime,
            {"type": "string", "format": "date-time"},
            "2026-01-02T03:04:05+00:00",
            dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        ),
        (dt.time, {"type": "string", "format": "time"}, "03:04", dt.time(3, 4)),
        (dt.timedelta, {"type": "string", "format": "duration"}, "PT5M", dt.timedelta(minutes=5)),
        (UUID, {"type": "string", "format": "uuid"}, str(UUID(int=7)), UUID(int=7)),
        (Path, {"type": "string", "format": "path"}, "a/b", Path("a/b")),
        (list[int], {"type": "array", "items": {"type": "integer"}}, ["1", 2], [1, 2]),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1, 2], {1, 2}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, {"k": "1"}, {"k": 1}),
        (dict, {"type": "object", "additionalProperties": True}, {"k": []}, {"k": []}),
        (Any, {}, {"k": [None]}, {"k": [None]}),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
            [1, "a"],
            (1, "a"),
        ),
        (Annotated[int, Field(ge=0, description="F")], {"type": "integer", "minimum": 0, "description": "F"}, 0, 0),
        (Annotated[int, "some text"], {"type": "integer", "description": "some text"}, 1, 1),
    ],
)
def test_types(annotation: Any, schema: dict[str, Any], given: Any, python: Any) -> None:
    """Each type has its schema and comes back as Python."""
    described = describe(one(annotation))
    assert described.parameters["properties"]["x"] == schema
    bound = described.bind({"x": given})["x"]
    assert bound == python
    assert type(bound) is type(python)


@pytest.mark.parametrize(
    ("annotation", "given", "python"),
    [
        (Decimal, "1.50", Decimal("1.50")),
        (Decimal, 0.1, Decimal("0.1")),
        (Color, "red", Color.RED),
        (Level, 2, Level.HIGH),
        (Level, "2", Level.HIGH),
        (Point, {"x": "1"}, Point(1)),
        (Options, {"a": 1}, {"a": 1}),
        (Options | None, {"a": 1, "b": "x"}, {"a": 1, "b": "x"}),
        (Annotated[list[Options], "several"], [{"a": "1"}], [{"a": 1}]),
        (Open, {"x": 1, "y": 2}, Open.model_validate({"x": 1, "y": 2})),
        (Strict, {"day": "2026-01-02", "color": "red"}, Strict(day=dt.date(2026, 1, 2), color=Color.RED)),
        (
            Node,
            {"title": "t", "children": [{"title": "u", "default": "4"}]},
            Node(title="t", children=[Node(title="u", default=4)]),
        ),
    ],
)
def test_values_of_classes(annotation: Any, given: Any, python: Any) -> None:
    """Models, dataclasses, TypedDicts, enums and decimals become instances; schemas resolve and are valid."""
    described = describe(one(annotation))
    Draft202012Validator.check_schema(described.parameters)
    assert described.bind({"x": given}) == {"x": python}


def test_nested_objects_are_closed_and_without_titles() -> None:
    """Models are closed unless they allow more; properties called like keywords survive; references resolve."""

    def fn(node: Node, point: Point, options: Options, free: Open, color: Color) -> None: ...

    definitions = describe(fn).parameters["$defs"]
    assert definitions["Node"] == {
        "type": "object",
        "description": "A node.",
        "properties": {
            "title": {"type": "string"},
            "default": {"type": "integer", "default": 3},
            "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []},
        },
        "required": ["title"],
        "additionalProperties": False,
    }
    assert definitions["Color"] == {"type": "string", "enum": ["red", "blue"], "description": "Colours."}
    assert {name: held.get("additionalProperties") for name, held in definitions.items()} == {
        "Node": False,
        "Point": False,
        "Options": False,
        "Open": True,
        "Color": None,
    }
    assert definitions["Options"]["required"] == ["a"]


def test_same_typed_dict_twice() -> None:
    """One definition serves all its places."""

    def fn(a: Options, b: list[Options]) -> None: ...

    assert list(describe(fn).parameters["$defs"]) == ["Options"]


@pytest.mark.parametrize(
    ("annotation", "given", "problem"),
    [
        (int, "x", 'x: must be integer, not string "x"'),
        (int, True, "x: must be integer, not boolean true"),
        (bool, "yes", "x: must be boolean"),
        (dt.date, 20260102, "x: must be string"),
        (dt.date, "soon", "x: Input should be a valid date or datetime, input is too short, got 'soon'"),
        (Node, {"title": " "}, "x.title: Value error, must not be blank, got ' '"),
        (Node, {"title": "t", "children": [{"title": "u", "more": 1}]}, "x.children[0].more: unknown; allowed: title"),
        (Point, {"x": 1, "z": 1}, "x.z: unknown; "),
        (Options, {"a": 1, "z": 1}, "x.z: unknown; "),
        (Color, "green", 'x: must be one of ["red", "blue"], not "green"'),
        (Any, float("nan"), "the arguments are not JSON"),
    ],
)
def test_bad_values(annotation: Any, given: Any, problem: str) -> None:
    """The error names the path and what is wrong."""
    with pytest.raises(ArgumentError) as caught:
        describe(one(annotation)).bind({"x": given})
    assert str(caught.value).startswith(problem)


def test_long_values_stay_out_of_errors() -> None:
    """No more than 200 characters of a value are shown."""
    with pytest.raises(ArgumentError) as caught:
        describe(one(dt.date)).bind({"x": "secret" * 1000})
    assert len(str(caught.value)) < 400


def test_missing_and_unknown_arguments() -> None:
    """Required parameters and closed objects are enforced."""
    with pytest.raises(ArgumentError, match="x: required, but missing\ny: unknown; "):
        describe(one(int)).bind({"y": 1})


@pytest.mark.parametrize(
    ("annotation", "default", "schema"),
    [
        (int, 3, {"type": "integer", "default": 3}),
        (dt.date, dt.date(2026, 1, 2), {"type": "string", "format": "date", "default": "2026-01-02"}),
        (int, object(), {"type": "integer"}),
        (
            int,
            Field(5, description="five", ge=1),
            {"type": "integer", "default": 5, "minimum": 1, "description": "five"},
        ),
    ],
)
def test_defaults(annotation: Any, default: Any, schema: dict[str, Any]) -> None:
    """A default is in the schema where JSON can say it, and makes the parameter optional."""
    described = describe(one(annotation, default=default))
    assert described.parameters == {"type": "object", "properties": {"x": schema}, "additionalProperties": False}


def test_defaults_are_left_to_the_function() -> None:
    """Only what was given is bound, but a default that pydantic holds is supplied."""

    def fn(a: int = 1, b: int = Field(2), c: list[int] = Field(default_factory=list)) -> None: ...  # noqa: B008

    assert describe(fn).bind({}) == {"b": 2, "c": []}


STYLES = {
    "google": """Do it.

    At length.

    Args:
        city (str): Name of
            the city.
        days: How many.

    Returns:
        Something.
    """,
    "numpy": """Do it.

    At length.

    Parameters
    ----------
    city : str
        Name of
        the city.
    days : int
        How many.
    """,
    "sphinx": """Do it.

    At length.

    :param city: Name of
        the city.
    :param int days: How many.
    :returns: Something.
    """,
    "epydoc": """Do it.

    At length.

    @param city: Name of
        the city.
    @param days: How many.
    """,
}


@pytest.mark.parametrize("style", STYLES)
def test_docstrings(style: str) -> None:
    """Each style gives the description and those of the parameters; Field wins."""

    def fn(city: str, days: Annotated[int, Field(description="From Field.")] = 1) -> None: ...

    fn.__doc__ = STYLES[style]
    described = describe(fn)
    assert described.name == "fn"
    assert described.description == "Do it.\n\nAt length."
    properties = described.parameters["properties"]
    assert properties["city"]["description"].split() == ["Name", "of", "the", "city."]
    assert properties["days"]["description"] == "From Field."


def test_without_docstring() -> None:
    """It may be missing."""

    def fn(x: Any, y: Any = None) -> None: ...

    described = describe(fn)
    assert described.description == ""
    assert described.parameters["properties"] == {"x": {}, "y": {"default": None}}
    assert described.bind({"x": [1]}) == {"x": [1]}


@pytest.mark.parametrize("annotation", ["Context", "Context | None", "Annotated[Context, 'x']", Optional[Context]])  # noqa: UP045
def test_context_is_hidden(annotation: Any) -> None:
    """The context's parameter is named and not in the schema."""

    def fn(a: int, ctx: Any = None) -> None: ...

    fn.__annotations__["ctx"] = annotation
    described = describe(fn, context_type=Context)
    assert described.context_parameter == "ctx"
    assert list(described.parameters["properties"]) == ["a"]
    assert described.bind({"a": 1}) == {"a": 1}
    with pytest.raises(ArgumentError, match="ctx: unknown"):
        described.bind({"a": 1, "ctx": {}})


def test_names_that_pydantic_has() -> None:
    """Parameters may be called like attributes of a model, with underscores, or by an alias."""

    def fn(schema: str, copy: int, model_config: int, _x: int, from_: Annotated[str, Field(alias="from")]) -> None: ...

    described = describe(fn)
    assert list(described.parameters["properties"]) == ["schema", "copy", "model_config", "_x", "from"]
    given = {"schema": "s", "copy": 1, "model_config": 2, "_x": 3, "from": "f"}
    assert described.bind(given) == {"schema": "s", "copy": 1, "model_config": 2, "_x": 3, "from_": "f"}


class Shop:
    """Has methods."""

    def sell(self, item: str) -> str:
        """Sell."""
        return item

    @classmethod
    def open(cls, door: int) -> int:
        """Open."""
        return door


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


@pytest.mark.parametrize(
    ("fn", "properties"),
    [(Shop().sell, ["item"]), (Shop.open, ["door"]), (wrapped(Shop().sell), ["item"]), (wrapped(one(int)), ["x"])],
)
def test_methods_and_decorated_functions(fn: Callable[..., Any], properties: list[str]) -> None:
    """Bound methods hide their first parameter, decorators keep the signature."""
    assert list(describe(fn).parameters["properties"]) == properties


def star(*items: str) -> None: ...


def stars(**items: str) -> None: ...


def slash(x: int, /) -> None: ...


def bare(x=1) -> None: ...  # type: ignore[no-untyped-def]


def unknown(x: Missing) -> None: ...


def returns_unknown(x: int) -> Missing: ...


class Callme:
    """Has __call__."""

    def __call__(self, x: int) -> None:
        """Call."""


def two(a: Context, b: Context | None) -> None: ...


def aliased(a: int, b: Annotated[int, Field(alias="a")]) -> None: ...


@pytest.mark.parametrize(
    ("fn", "texts"),
    [
        (lambda x: x, ["lambda", "write a def"]),
        (star, ["star", "`*items`", "list"]),
        (stars, ["stars", "`**items`", "dict"]),
        (slash, ["slash", "`x`", "remove the `/`"]),
        (bare, ["bare", "`x`", "no annotation", "`x: str`"]),
        (unknown, ["unknown", "`x`", "Missing", "module level"]),
        (one(bytes), ["fn", "`x`", "bytes", "base64"]),
        (one(list[bytes]), ["fn", "`x`", "bytes"]),
        (one(Callable[[], int]), ["fn", "`x`"]),
        (one(Callme), ["fn", "`x`"]),
        (functools.partial(one(int), x=1), ["function"]),
        (Callme(), ["function"]),
        (Shop.sell, ["sell", "not bound"]),
        (print, ["print", "function"]),
        (two, ["two", "`b`", "second Context"]),
        (aliased, ["aliased", "`b`", "taken"]),
    ],
)
def test_functions_that_a_model_cannot_call(fn: Callable[..., Any], texts: list[str]) -> None:
    """The error names the function, the parameter and the fix."""
    with pytest.raises(ConfigError) as caught:
        describe(fn, context_type=Context)
    for text in texts:
        assert text in str(caught.value)


def test_return_types_do_not_matter() -> None:
    """An annotation of the result that cannot be resolved is no obstacle."""
    assert describe(returns_unknown).bind({"x": "1"}) == {"x": 1}


def test_surrogates_are_cleaned() -> None:
    """Text that cannot travel does not crash a call."""
    assert describe(one(str)).bind({"x": "a\ud83d"}) == {"x": "a\ufffd"}


def test_partial_typed_dict() -> None:
    """`total=False` makes all keys optional."""
    described = describe(one(Partial))
    assert described.bind({"x": {}}) == {"x": {}}
    assert "required" not in described.parameters["$defs"]["Partial"]
