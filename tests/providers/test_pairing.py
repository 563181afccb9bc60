"""Calls and results on the outgoing copy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.messages import AssistantMessage, CallPart, Message, ToolMessage, UserMessage, text
from providers.pairing import INTERRUPTED, paired


def user(words: str = "u") -> UserMessage:
    """A user message."""
    return UserMessage(role="user", parts=text(words))


def calls(*ids: str) -> AssistantMessage:
    """A reply that calls `add` once for each id."""
    return AssistantMessage(role="assistant", parts=tuple(CallPart(type="call", id=i, tool="add") for i in ids))


def result(call: str, words: str = "r") -> ToolMessage:
    """A result."""
    return ToolMessage(role="tool", call=call, parts=text(words))


def interrupted(call: str) -> ToolMessage:
    """The result that is put in for a call without one."""
    return ToolMessage(role="tool", call=call, parts=text(INTERRUPTED), error=True)


def test_order_and_place() -> None:
    """Results follow their calls at once and in call order, whatever came between."""
    messages: list[Message] = [calls("c1", "c2"), user(), result("c2", "two"), result("c1", "one")]
    assert paired(messages) == [calls("c1", "c2"), result("c1", "one"), result("c2", "two"), user()]


def test_missing_foreign_and_second_results() -> None:
    """A missing result is put in; a result of no call, before its call, or given twice is left out."""
    messages: list[Message] = [
        result("c1", "early"),
        calls("c1", "c2"),
        result("c1"),
        result("c1", "again"),
        result("t9"),
        user(),
    ]
    assert paired(messages) == [calls("c1", "c2"), result("c1"), interrupted("c2"), user()]


def test_an_id_used_again_belongs_to_the_later_call() -> None:
    """A conversation that was continued may use an id twice."""
    messages: list[Message] = [calls("c1"), user(), calls("c1"), result("c1", "late")]
    assert paired(messages) == [calls("c1"), interrupted("c1"), user(), calls("c1"), result("c1", "late")]


IDS = st.sampled_from(["a", "b", "c"])
MESSAGES = st.one_of(st.builds(user), st.lists(IDS, max_size=3).map(lambda ids: calls(*ids)), IDS.map(result))


@given(st.lists(MESSAGES, max_size=12))
def test_every_history_comes_out_paired(messages: list[Message]) -> None:
    """After each reply come exactly its results in order, nothing else changes, and a second pass changes nothing."""
    out = paired(messages)
    waiting: list[str] = []
    for message in out:
        if isinstance(message, ToolMessage):
            assert message.call == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call.id for call in message.calls] if isinstance(message, AssistantMessage) else []
    assert not waiting
    assert [m for m in out if not isinstance(m, ToolMessage)] == [m for m in messages if not isinstance(m, ToolMessage)]
    assert paired(out) == out
