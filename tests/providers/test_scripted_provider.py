"""The scripted model: the same answer in every attempt."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import MESSAGES, Usage
from perdure.model_call import Finish, ModelRequest, RawCall, RawText
from providers import REGISTRY
from providers.scripted import Scripted, play


def text(value: str) -> list[dict[str, str]]:
    """One text part."""
    return [{"type": "text", "text": value}]


USER = {"role": "user", "parts": text("Oslo")}
TURN = [
    USER,
    {
        "role": "assistant",
        "parts": [
            {"type": "call", "id": "c1", "tool": "add", "arguments": {}},
            {"type": "call", "id": "c2", "tool": "f", "arguments": {}},
        ],
    },
    {"role": "tool", "call": "c2", "parts": text('{"path": {"to": [10, {"n": 7}]}, "name": "x"}')},
    {"role": "tool", "call": "c1", "parts": text("{{user}} 3")},
]


def request(messages: list[Any], *script: Any, **params: Any) -> ModelRequest:
    """A request to a scripted model."""
    return ModelRequest(
        model="",
        instructions="",
        messages=tuple(MESSAGES.validate_python(messages)),
        params={"script": list(script), **params},
    )


def test_steps_by_position() -> None:
    """The number of replies so far chooses the step."""
    script = ({"text": "first"}, {"text": "second"})
    assert play(request([USER], *script)).reply.parts == (RawText("first"),)
    assert play(request(TURN, *script)).reply.parts == (RawText("second"),)


def test_the_end_of_a_script() -> None:
    """Beyond the end the last step repeats where it says so, else the count is told."""
    assert play(request(TURN, {"text": "again", "repeat": True})).reply.parts == (RawText("again"),)
    with pytest.raises(ProviderError, match="the script has 1 steps, step 2 was asked") as caught:
        play(request(TURN, {"text": "once"}))
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


def test_a_whole_step() -> None:
    """Text, calls, usage, finish, delay and pieces."""
    step = {
        "text": "Hello world",
        "calls": [{"tool": "add", "arguments": {"a": 1}}, {"tool": "raw", "arguments": '{"a":'}, {"tool": "none"}],
        "usage": {"input_tokens": 5, "output_tokens": 6},
        "finish": "length",
        "delay_ms": 20,
        "chunks": 3,
    }
    turn = play(request([USER], step))
    assert turn.reply.parts == (
        RawText("Hello world"),
        RawCall("add", {"a": 1}),
        RawCall("raw", '{"a":'),
        RawCall("none", None),
    )
    assert (turn.reply.finish, turn.reply.announced_calls) == (Finish.LENGTH, True)
    assert turn.reply.usage == Usage(input_tokens=5, output_tokens=6)
    assert (turn.chunks, turn.delay_ms) == (("Hell", "o wo", "rld"), 20)


@pytest.mark.parametrize(
    ("chunks", "pieces"), [(1, ("abc",)), (2, ("ab", "c")), (3, ("a", "b", "c")), (9, ("a", "b", "c"))]
)
def test_pieces(chunks: int, pieces: tuple[str, ...]) -> None:
    """Pieces make the text, and none is empty."""
    assert play(request([USER], {"text": "abc", "chunks": chunks})).chunks == pieces


def test_usage_is_estimated_from_lengths() -> None:
    """Four characters are a token, rounded up, the same every time."""
    assert play(request([USER], {"text": "12345"})).reply.usage == Usage(input_tokens=1, output_tokens=2)


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        ("{{user}}!", "Oslo!"),
        ("{{last_tool_text}}", "{{user}} 3"),
        ("{{tool:c1}}", "{{user}} 3"),
        ("{{tool:c2.name}}", "x"),
        ("n={{tool:c2.path.to.1.n}} {{tool:c2.path.to}}", 'n=7 [10, {"n": 7}]'),
        ("{{other}} {user}", "{{other}} {user}"),
    ],
)
def test_placeholders_in_text(given: str, filled: str) -> None:
    """Results can be used; what they hold is not filled again; all else stays."""
    assert play(request(TURN, {}, {"text": given})).reply.parts == (RawText(filled),)


def test_placeholders_in_arguments() -> None:
    """A placeholder alone keeps the type of the value, at any depth."""
    arguments = {"n": "{{tool:c2.path.to.1.n}}", "list": ["{{user}}", 1], "text": "<{{tool:c2.path.to.0}}>"}
    [call] = play(request(TURN, {}, {"calls": [{"tool": "t", "arguments": arguments}]})).reply.parts
    assert call == RawCall("t", {"n": 7, "list": ["Oslo", 1], "text": "<10>"})


@pytest.mark.parametrize("name", ["tool:c9", "tool:c2.nope", "tool:c2.name.x", "tool:c2.path.to.9", "tool:c1.x"])
def test_a_placeholder_that_stands_for_nothing(name: str) -> None:
    """It is named."""
    with pytest.raises(ProviderError, match=name) as caught:
        play(request(TURN, {}, {"text": f"{{{{{name}}}}}"}))
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


def test_errors_by_attempt() -> None:
    """An error comes in its attempts, then the rest of the step plays; without `times` it always comes."""
    error = {"kind": "rate_limit", "message": "slow down", "times": 2, "retry_after": 0}
    asked = request([USER], {"error": error, "text": "ok"})
    for attempt in (1, 2):
        with pytest.raises(ProviderError, match="slow down") as caught:
            play(asked, attempt)
        assert (caught.value.kind, caught.value.retry_after) == (ErrorKind.RATE_LIMIT, 0)
    assert play(asked, 3).reply.parts == (RawText("ok"),)
    with pytest.raises(ProviderError):
        play(request([USER], {"error": {"kind": "server"}}), 99)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "script: Input should be a valid list"),
        ([{"txt": "x"}], r"script\.0\.txt"),
        ([{"error": {"kind": "odd"}}], r"script\.0\.error\.kind"),
        ([{"chunks": 0}], r"script\.0\.chunks"),
    ],
)
def test_a_broken_script_is_named(script: Any, words: str) -> None:
    """The message names the place and shows how a script looks."""
    with pytest.raises(ProviderError, match=words) as caught:
        play(request([USER], script=script))
    assert caught.value.kind is ErrorKind.CONFIGURATION


def test_in_the_registry() -> None:
    """The provider needs neither address nor key."""
    entry = REGISTRY["scripted"]
    assert isinstance(entry.provider, Scripted)
    assert (entry.key_required, entry.api_key_env, entry.default_base_url) == (False, None, None)
    assert entry.provider.play(request([USER], {"text": "hi"})).chunks == ("hi",)
