"""What Anthropic's servers do themselves within a reply: it goes back to them, and a turn that they paused goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model_call import RawText, RawThinking
from providers.base import ServerSentEvent
from tests.providers.anthropic_oracle import (
    ADD,
    GOLDEN,
    OWN,
    PROVIDER,
    assistant,
    body_of,
    call,
    folded,
    judge,
    parsed,
    request,
    result,
    sent,
    thought,
    user,
)
from tests.providers.conversations import stored

SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
PAUSED = thought("", paused=True)


def used(number: int) -> dict[str, Any]:
    """The server's own call of its search, as a part."""
    return thought("", block={"type": "server_tool_use", "id": f"s{number}", "name": "web_search", "input": {"q": "q"}})


def found(number: int) -> dict[str, Any]:
    """What came of it."""
    return thought("", block={"type": "web_search_tool_result", "tool_use_id": f"s{number}", "content": []})


ASKED = request(
    user("Weather?"),
    assistant(thought("hm", signature="RXFzaWc="), "Searching.", used(1), found(1), used(2), PAUSED),
    tools=(ADD,),
    params={"tools": [SEARCH]},
)


def test_a_golden_request() -> None:
    """The turn that goes on, as it is sent."""
    assert body_of(ASKED) == json.loads((GOLDEN / "server_tools.request.json").read_text())


@pytest.mark.parametrize("case", ["paused.response.json", "paused.sse"])
def test_a_paused_turn_goes_back_as_it_came(case: str) -> None:
    """Every block of it stands where it stood, byte for byte, and nothing of the user's closes the turn."""
    data = (GOLDEN / case).read_bytes()
    replied = folded(data)[0] if case.endswith(".sse") else parsed(data)
    asked = request(user(), stored(replied).model_dump(mode="json"))
    assert asked.messages[-1].role == "assistant"
    turns = json.loads(json.dumps(judge(PROVIDER.build(asked))))["messages"]
    whole = json.loads((GOLDEN / "paused.response.json").read_bytes())
    assert [turn["role"] for turn in turns] == ["user", "assistant"]
    assert json.dumps(turns[1]["content"]) == json.dumps(whole["content"])


def test_a_reply_with_much_of_the_server_keeps_the_last_of_it() -> None:
    """What the history cannot carry is left out, the oldest first; the words stay."""
    known = {"type": "web_search_result", "title": "t", "url": "https://example.org/a", "page_age": None}
    pages = {str(n): {**known, "encrypted_content": str(n) * 150_000} for n in range(1, 5)}
    content: list[dict[str, Any]] = [{"type": "text", "text": "Searching."}]
    for n, page in pages.items():
        content.append({"type": "server_tool_use", "id": f"srvtoolu_0{n}", "name": "web_search", "input": {}})
        content.append({"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_0{n}", "content": [page]})
    got = parsed(json.dumps({"content": content, "stop_reason": "pause_turn"}).encode())
    kept = [part.details["block"] for part in got.parts if part.details and "block" in part.details]
    assert kept == content[5:]
    assert got.parts[0] == RawText("Searching.")
    assert sent(user(), stored(got).model_dump(mode="json"))[-1] == ("assistant", [content[0], *content[5:]])


@pytest.mark.parametrize("pieces", [[], [""], ["{"], ["[1]"], ["7"]])
def test_a_call_of_the_server_whose_input_is_no_object(pieces: list[str]) -> None:
    """It goes back as it began."""
    start = {"type": "server_tool_use", "id": "srvtoolu_01", "name": "web_search", "input": {"q": 1}}
    fold = PROVIDER.fold()
    fold.feed(ServerSentEvent(json.dumps({"type": "content_block_start", "index": 0, "content_block": start})))
    for piece in pieces:
        delta = {"type": "input_json_delta", "partial_json": piece}
        fold.feed(ServerSentEvent(json.dumps({"type": "content_block_delta", "index": 0, "delta": delta})))
    fold.feed(ServerSentEvent('{"type":"message_stop"}'))
    assert fold.finish().parts == (RawThinking("", {**OWN, "block": start}),)


SERVED = {
    "a turn that goes on": ([assistant("a", used(1), PAUSED)], ["a s1"]),
    "its result": ([assistant("a", used(1), PAUSED), assistant(found(1), "b")], ["a s1 +s1 b", "(continue)"]),
    "over several pauses": (
        [assistant(used(1), PAUSED), assistant(found(1), used(2), PAUSED), assistant(found(2), used(3), PAUSED)],
        ["s1 +s1 s2 +s2 s3"],
    ),
    "with calls of ours": ([assistant(used(1), call("c1"), PAUSED), result("c1", "3")], ["s1 c1", "+c1"]),
    "results after those of ours": (
        [assistant(used(1), call("c1"), PAUSED), result("c1", "3"), assistant(found(1), "b"), user("d")],
        ["s1 c1", "+c1", "+s1 b", "d"],
    ),
    "the user spoke before its result": ([assistant("a", used(1), PAUSED), user("d")], ["a", "d"]),
    "nothing but a call without its result": ([assistant(used(1), PAUSED), user("d")], ["U d"]),
    "a result without its call": ([assistant(found(1), "b"), user("d")], ["b", "d"]),
    "a result behind a word of the user's": (
        [assistant("a", used(1)), user("d"), assistant(found(1), "b"), user("e")],
        ["a", "d", "b", "e"],
    ),
    "a finished turn": ([assistant(used(1), found(1), "b"), user("d")], ["s1 +s1 b", "d"]),
    "a turn cut in a search": ([assistant("a", used(1))], ["a", "(continue)"]),
    "words alone": ([assistant("a", PAUSED)], ["a"]),
    "nothing at all": ([assistant(PAUSED)], ["U"]),
    "an earlier pause": ([assistant("a", PAUSED), assistant("b")], ["a b", "(continue)"]),
}


def told(block: dict[str, Any]) -> str:
    """A block in a word: its text, its id, or + and the id that it answers."""
    return str(block.get("text") or block.get("id") or f"+{block['tool_use_id']}")


@pytest.mark.parametrize("case", SERVED)
def test_what_the_server_did_itself(case: str) -> None:
    """It goes back in its place, calls and results together; a call alone only where the turn goes on."""
    items, turns = SERVED[case]
    got = [" ".join(map(told, content)) for _, content in sent(user(), *items)]
    assert got == (turns if got[0].startswith("U ") or turns == ["U"] else ["U", *turns])


@given(
    st.lists(st.sampled_from(["used", "found", "text", "call", "paused", "user", "next"]), max_size=14), st.booleans()
)
def test_any_mix_of_what_the_server_did(steps: list[str], ours: bool) -> None:
    """Replies cut anywhere, with pauses, calls of ours and words of the user between, give a request that is taken."""
    items: list[dict[str, Any]] = [user()]
    parts: list[dict[str, Any]] = []
    number = answered = 0
    for at, step in enumerate([*steps, "next"]):
        if step == "used":
            number += 1
            parts.append(used(number))
        elif step == "found" and answered < number:
            answered += 1
            parts.append(found(answered))
        elif step in ("text", "paused"):
            parts.append({"type": "text", "text": "a"} if step == "text" else PAUSED)
        elif step == "call" and ours:
            parts.append(call(f"c{at}"))
        elif step in ("user", "next"):
            items.append(assistant(*parts))
            items += [result(part["id"], "3") for part in parts if part["type"] == "call"]
            items += [user("d")] if step == "user" else []
            parts = []
    blocks = [block for _, content in sent(*items) for block in content]
    kept = [block["id"] for block in blocks if block["type"] == "server_tool_use"]
    assert len(set(kept)) == len(kept)


@pytest.mark.parametrize("part", [used(1), found(1), PAUSED], ids=["call", "result", "pause"])
def test_what_another_server_did_stays_at_home(part: dict[str, Any]) -> None:
    """Its blocks are left out, and its pause is no pause here."""
    foreign = {**part, "details": {**part["details"], "provider": "elsewhere"}}
    assert sent(user(), assistant("a", foreign))[1:] == [
        ("assistant", [{"type": "text", "text": "a"}]),
        ("user", [{"type": "text", "text": "(continue)"}]),
    ]


@pytest.mark.parametrize("block", [{}, [], "s1", {"id": ["s1"]}, {"id": 7}, {"tool_use_id": {"a": 1}}, {"type": "x"}])
def test_blocks_that_nobody_can_place(block: Any) -> None:
    """They are left out."""
    assert sent(user(), assistant("a", thought("", block=block)), user("b"))[1][1] == [{"type": "text", "text": "a"}]


def test_tools_of_the_server_stand_beside_those_of_the_agent() -> None:
    """Those of the params are added; without any of the agent's they are all."""
    assert [tool["name"] for tool in body_of(ASKED)["tools"]] == ["add", "web_search"]
    assert body_of(request(user(), params={"tools": [SEARCH]}))["tools"] == [SEARCH]


def test_the_mark_for_the_cache_is_not_put_on_what_the_server_said() -> None:
    """A turn that goes on is marked at the last word of the user's."""
    body = body_of(request(user("a"), assistant("b", used(1), PAUSED), instructions="I"))
    blocks = [*body["system"], *(block for turn in body["messages"] for block in turn["content"])]
    assert ["cache_control" in block for block in blocks] == [True, True, False, False]


@pytest.mark.parametrize(("parts", "thinks"), [((thought(signature="s"), used(1)), True), ((used(1),), False)])
def test_thinking_where_a_turn_goes_on(parts: Any, thinks: bool) -> None:
    """A turn that began without it goes on without it, where it has a budget."""
    params = {"thinking": {"type": "enabled", "budget_tokens": 2_000}}
    assert ("thinking" in body_of(request(user(), assistant(*parts, PAUSED), params=params))) is thinks
