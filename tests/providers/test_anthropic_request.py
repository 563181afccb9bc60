"""Requests in the Anthropic Messages format: each is judged by the SDK's type, and by rule."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import AssistantMessage, CallPart, DocumentPart, Message, TextPart, ThinkingPart
from perdure.model_call import ModelRequest, ToolDefinition
from providers.anthropic.request import MOST_TOKENS
from providers.text import clean
from tests.providers.anthropic_oracle import (
    ADD,
    GOLDEN,
    OWN,
    PROVIDER,
    assistant,
    body_of,
    call,
    judge,
    request,
    result,
    sent,
    thought,
    user,
)
from tests.providers.conversations import SECRET, conversations, documents, images, texts

CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FREE = {"type": "object", "properties": {"fields": {"type": "object", "additionalProperties": {"type": "string"}}}}
IMAGE = {"type": "image", "base64": "aGk=", "media_type": "image/png"}
LINKED = {"type": "image", "url": "https://example.org/a.png"}
PDF = {"type": "document", "base64": "JVBERg==", "media_type": "application/pdf", "name": "a.pdf"}
LINKED_PDF = {"type": "document", "url": "https://example.org/a.pdf"}
NOTES = {"type": "document", "base64": "Tm90ZXM=", "media_type": "text/markdown", "name": "notes.md"}

REQUESTS: dict[str, ModelRequest] = {
    "plain": request(user("Hi"), instructions="Be kind.", max_tokens=100),
    "tools": request(
        user("1+2?"),
        tools=(ADD,),
        tool_choice="add",
        parallel_tools=False,
        output_schema=CLOSED,
        params={"stop": "END"},
    ),
    "tool_turn": request(
        user("1+2?"),
        assistant("Adding.", call("c1", details={**OWN, "id": "toolu_01"}), call("c2")),
        result("c2", "three"),
        result("c1", "broken", error=True),
        user("Go on."),
        tools=(ADD,),
        instructions="Be kind.",
    ),
    "media": request(
        user("Look:", IMAGE, LINKED, PDF, LINKED_PDF, NOTES),
        assistant(call("c1"), call("c2")),
        result("c1", "Here:", IMAGE, PDF),
        result("c2", LINKED, error=True),
    ),
    "thinking": request(
        user("2+2?"),
        assistant(thought("Two sums.", signature="RXFzaWc="), thought("", data="RW5j"), "Adding.", call("c1")),
        result("c1", "4"),
        params={"reasoning_effort": "high"},
    ),
    "free_output": request(user(), output_schema=FREE, params={"stream": False}),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_golden_requests(case: str) -> None:
    """Each request gives the recorded body, which the SDK's type takes."""
    assert body_of(REQUESTS[case]) == json.loads((GOLDEN / f"{case}.request.json").read_text())


OWN_THOUGHTS = st.sampled_from([{**OWN, "signature": "b3duLXNpZw=="}, {**OWN, "data": "b3duLWRhdGE="}, {**OWN}])
OWN_CALLS = st.sampled_from([{**OWN, "id": "toolu_1"}, {**OWN, "id": "toolu_2"}, {**OWN, "id": "not usable!"}, {**OWN}])


def _is_known(part: Any) -> bool:
    return not isinstance(part, DocumentPart) or part.media_type != "application/x-odd"


CONVERSATIONS = conversations(
    thinking=OWN_THOUGHTS,
    call=OWN_CALLS,
    system=texts(),
    user=(texts() | images() | documents()).filter(_is_known),
)


def opaque(message: Message) -> list[dict[str, Any]]:
    """What must go back of a reply as it came: sealed thinking, where something follows it."""
    if not isinstance(message, AssistantMessage):
        return []
    parts = [part for part in message.parts if not isinstance(part, CallPart)]
    if not message.calls:
        spoken = [at for at, part in enumerate(parts) if isinstance(part, TextPart) and part.text.strip()]
        parts = parts[: spoken[-1]] if spoken else []
    blocks = []
    for part in parts:
        details = part.details or {} if isinstance(part, ThinkingPart) else {}
        if isinstance(part, ThinkingPart) and details.get("provider") == "anthropic":
            if "data" in details:
                blocks.append({"type": "redacted_thinking", "data": details["data"]})
            elif "signature" in details and clean(part.text) == part.text:
                blocks.append({"type": "thinking", "thinking": part.text, "signature": details["signature"]})
    return blocks


@given(CONVERSATIONS, st.sampled_from([{}, {"reasoning_effort": "low"}, {"cache_control": None}]))
def test_any_conversation_gives_a_request_that_is_accepted(kept: tuple[Message, ...], params: dict[str, Any]) -> None:
    """Turns alternate, each call has one result in its order, own seals go back whole, another's stay at home."""
    body = body_of(ModelRequest("m", "I", kept, tools=(ADD,), params=params))
    blocks = [block for turn in body["messages"] for block in turn["content"]]
    calls = sum(len(message.calls) for message in kept if isinstance(message, AssistantMessage))
    assert sum(block["type"] == "tool_use" for block in blocks) == calls
    sealed = [{k: v for k, v in b.items() if k != "cache_control"} for b in blocks if "thinking" in b["type"]]
    assert sealed == [block for message in kept for block in opaque(message)]
    assert SECRET not in json.dumps(body)


@given(CONVERSATIONS)
def test_building_changes_nothing(kept: tuple[Message, ...]) -> None:
    """The same request gives the same body again, and stays as it was."""
    asked = ModelRequest("m", "I", kept, tools=(ADD,), output_schema=CLOSED, params={"thinking": {"type": "adaptive"}})
    before = repr(asked)
    assert PROVIDER.build(asked) == PROVIDER.build(asked)
    assert repr(asked) == before


def test_system_prompts_stand_at_the_top() -> None:
    """Instructions and system messages become one system prompt in their order."""
    said = request(user(), {"role": "system", "parts": ["S1"]}, {"role": "system", "parts": [" "]}, instructions="I")
    assert [block["text"] for block in body_of(said)["system"]] == ["I\n\nS1"]
    assert "system" not in body_of(request(user()))


@pytest.mark.parametrize(
    ("items", "roles"),
    [
        ([], ["(continue)"]),
        ([assistant("Hello")], ["(continue)", "Hello", "(continue)"]),
        ([user("a"), user(" "), user("b"), assistant(""), user("c")], ["a b c"]),
        ([user("a"), assistant(thought(signature="s")), user("b")], ["a b"]),
        ([user("a"), assistant("b"), assistant("c")], ["a", "b c", "(continue)"]),
    ],
)
def test_turns_alternate_from_user_to_user(items: list[dict[str, Any]], roles: list[str]) -> None:
    """Neighbours are joined, empty ones left out, and the user has the first and the last word."""
    assert [" ".join(block["text"] for block in content) for _, content in sent(*items)] == roles


def test_ids_on_the_wire() -> None:
    """The server's own id where it is usable and unique, else ours; both halves agree."""
    turns = sent(
        user(),
        assistant(
            call("c1", details={**OWN, "id": "toolu_1"}),
            call("c2", details={**OWN, "id": "toolu_1"}),
            call("c3", details={**OWN, "id": "no good"}),
            call("c4", details={"provider": "elsewhere", "id": "call_9"}),
            call("c.5!"),
            call("c6", details={**OWN, "id": "c7"}),
        ),
        assistant(call("c7")),
    )
    ids = [block["id"] for _, content in turns for block in content if block["type"] == "tool_use"]
    assert ids == ["toolu_1", "c2", "c3", "c4", "c_5_", "c7", "c7_2"]


def test_results_stand_first_in_one_turn() -> None:
    """All results of a turn come in call order in one message, and what the user says follows in it."""
    content = sent(user(), assistant(call("c1"), call("c2")), result("c2", "B"), result("c1"), user("go on"))[2][1]
    assert content == [
        {"type": "tool_result", "tool_use_id": "c1"},
        {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "B"}]},
        {"type": "text", "text": "go on"},
    ]


@pytest.mark.parametrize(
    ("parts", "texts_in_it", "kinds"),
    [
        ([], ["The call failed without a message."], ["tool_result"]),
        ([" "], ["The call failed without a message."], ["tool_result"]),
        (["no", IMAGE], ["no"], ["tool_result", "text", "image"]),
        ([PDF], ["The call failed without a message."], ["tool_result", "text", "document"]),
    ],
)
def test_a_failed_call_has_text_and_nothing_else(parts: list[Any], texts_in_it: list[str], kinds: list[str]) -> None:
    """What a failed call shows besides text follows behind the results."""
    content = sent(user(), assistant(call("c1")), result("c1", *parts, error=True))[2][1]
    assert [block["text"] for block in content[0]["content"]] == texts_in_it
    assert [block["type"] for block in content] == kinds


def test_calls_come_last_in_a_reply() -> None:
    """Text of another vendor's reply that stands behind a call goes before it."""
    assert [b["type"] for b in sent(user(), assistant(call("c1"), "said"))[1][1]] == ["text", "tool_use"]


@pytest.mark.parametrize(
    "details",
    [
        None,
        {},
        {"signature": ""},
        {"signature": 7},
        {"provider": "elsewhere", "signature": "s"},
        {"provider": "anthropic"},
    ],
)
def test_thinking_without_an_own_seal_is_left_out(details: dict[str, Any] | None) -> None:
    """The API would refuse it."""
    part = {"type": "thinking", "text": "hm", "details": details}
    assert sent(user(), assistant(part, "said"))[1][1] == [{"type": "text", "text": "said"}]


def test_omitted_thinking_goes_back_empty() -> None:
    """A seal without text is a block all the same."""
    block = {"type": "thinking", "thinking": "", "signature": "s"}
    assert sent(user(), assistant(thought("", signature="s"), "said"))[1][1][0] == block


def test_a_made_up_tool_name_is_sent_in_a_form_that_is_accepted() -> None:
    """A call of a name that the format forbids does not poison the conversation."""
    asked = sent(user(), assistant(call("c1", tool="get weather!"), call("c2", tool=""), call("c3", tool="x" * 200)))
    assert [block["name"] for block in asked[1][1]] == ["get_weather_", "unnamed", "x" * 128]


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ({**IMAGE, "media_type": "image/JPG; q=1"}, {"type": "base64", "media_type": "image/jpeg", "data": "aGk="}),
        (
            {"type": "image", "url": "data:image/gif;base64,aGk="},
            {"type": "base64", "media_type": "image/gif", "data": "aGk="},
        ),
        (
            {"type": "document", "url": "data:application/pdf;base64,aGk="},
            {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
        ),
        ({**NOTES, "base64": "/w=="}, {"type": "text", "media_type": "text/plain", "data": "\ufffd"}),
        ({**NOTES, "media_type": "application/json"}, {"type": "text", "media_type": "text/plain", "data": "Notes"}),
    ],
)
def test_media_in_other_forms(part: dict[str, Any], source: dict[str, Any]) -> None:
    """Data in an address, types with parameters, and documents of text."""
    assert sent(user(part))[0][1][0]["source"] == source


UNSHOWABLE = [
    ({**IMAGE, "media_type": "image/svg+xml"}, "an image of type image/svg\\+xml cannot be shown"),
    ({"type": "image", "base64": "aGk="}, "needs a url, or base64 data together with its media_type"),
    ({"type": "document"}, "needs a url, or base64 data"),
    ({**PDF, "media_type": "application/zip"}, "a document of type application/zip cannot be shown"),
    ({**LINKED_PDF, "media_type": "text/csv"}, "cannot be given by its address"),
    ({**NOTES, "base64": "a"}, "base64 data of this document cannot be read"),
]


@pytest.mark.parametrize(("part", "words"), UNSHOWABLE)
def test_media_that_cannot_be_shown(part: dict[str, Any], words: str) -> None:
    """The user's is refused with the reason; a tool's becomes the reason, and the conversation goes on."""
    with pytest.raises(ProviderError, match=words) as caught:
        PROVIDER.build(request(user(part)))
    assert caught.value.kind is ErrorKind.INVALID_REQUEST
    (block,) = sent(user(), assistant(call("c1")), result("c1", part))[2][1][0]["content"]
    assert block["type"] == "text"


@pytest.mark.parametrize(
    ("choice", "parallel", "wire"),
    [
        ("auto", True, None),
        ("auto", False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", True, {"type": "any"}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("none", False, {"type": "none"}),
        ("add", False, {"type": "tool", "name": "add", "disable_parallel_tool_use": True}),
    ],
)
def test_tool_choice(choice: str, parallel: bool, wire: Any) -> None:
    """Each choice in the format's words, with the wish for single calls where it can stand."""
    asked = request(user(), tools=(ADD,), tool_choice=choice, parallel_tools=parallel)
    assert body_of(asked).get("tool_choice") == wire


def test_nothing_of_tools_without_tools() -> None:
    """A request without tools says nothing of choice."""
    assert not body_of(request(user(), tool_choice="required", parallel_tools=False)).keys() & {"tools", "tool_choice"}


@pytest.mark.parametrize(
    ("params", "wire"),
    [
        ({"stop": ["a", " "]}, {"stop_sequences": ["a"]}),
        ({"stop": None}, {}),
        ({"seed": 1}, {}),
        ({"reasoning_effort": "minimal"}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}),
        ({"reasoning_effort": "max"}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}),
        ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
        (
            {"reasoning_effort": "low", "thinking": {"display": "omitted"}},
            {"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "low"}},
        ),
        ({"reasoning_effort": "low", "thinking": None}, {"output_config": {"effort": "low"}}),
        ({"metadata": {"user_id": "u"}}, {"metadata": {"user_id": "u"}}),
    ],
)
def test_params(params: dict[str, Any], wire: dict[str, Any]) -> None:
    """Names of Chat Completions are understood, objects are merged, None takes a field out."""
    plain = body_of(request(user()))
    assert {k: v for k, v in body_of(request(user(), params=params)).items() if k not in plain} == wire


def test_params_of_the_sampler_go_out_as_they_are() -> None:
    """Servers of this format that still know them get them; the API's refusal is adapted to."""
    wire = PROVIDER.build(request(user(), params={"temperature": 0, "top_p": 0.5}))
    assert (wire.body["temperature"], wire.body["top_p"]) == (0, 0.5)


@pytest.mark.parametrize(
    ("asked", "params", "limit"),
    [
        (None, {}, MOST_TOKENS),
        (50, {}, 50),
        (500_000, {}, MOST_TOKENS),
        (None, {"thinking": {"type": "enabled", "budget_tokens": 9_000}}, MOST_TOKENS + 9_000),
        (50, {"max_completion_tokens": 60_000}, 60_000),
        (50, {"max_tokens": 7}, 7),
        (50, {"max_tokens": None}, 50),
    ],
)
def test_max_tokens_is_always_there(asked: int | None, params: dict[str, Any], limit: int) -> None:
    """An author's limit counts; a run's limit only lowers ours, for a large one would be refused."""
    assert body_of(request(user(), max_tokens=asked, params=params))["max_tokens"] == limit


ENABLED = {"type": "enabled", "budget_tokens": 10_000}


@pytest.mark.parametrize(
    ("items", "fields", "thinking"),
    [
        ([user()], {}, ENABLED),
        ([user()], {"max_tokens": 6_000}, {"type": "enabled", "budget_tokens": 3_000}),
        ([user()], {"max_tokens": 2_000}, None),
        ([user()], {"tool_choice": "required"}, None),
        ([user()], {"tool_choice": "none"}, ENABLED),
        ([user(), assistant(call("c1")), result("c1", "3")], {}, None),
        ([user(), assistant(thought(signature="s"), call("c1")), result("c1", "3")], {}, ENABLED),
        ([user(), assistant(call("c1")), result("c1", "3"), assistant("3"), user()], {}, ENABLED),
    ],
)
def test_thinking_only_where_the_api_takes_it(items: list[Any], fields: dict[str, Any], thinking: Any) -> None:
    """A budget stays below the limit; a forced tool, or calls made without thinking, go on without."""
    asked = request(*items, tools=(ADD,), params={"thinking": ENABLED}, **fields)
    assert body_of(asked).get("thinking") == thinking


@pytest.mark.parametrize("choice", ["required", "add"])
def test_no_thinking_where_a_tool_is_forced(choice: str) -> None:
    """Effort stays, thinking does not."""
    body = body_of(request(user(), tools=(ADD,), tool_choice=choice, params={"reasoning_effort": "high"}))
    assert body["output_config"] == {"effort": "high"}
    assert "thinking" not in body


MARK = {"type": "ephemeral"}


def marked(body: Any) -> list[Any]:
    """The marks for the cache in a body, with where they stand."""
    found = []
    for field in ("tools", "system"):
        found += [(field, block["cache_control"]) for block in body.get(field, ()) if "cache_control" in block]
    blocks = [block for turn in body["messages"] for block in turn["content"]]
    return found + [(n - len(blocks), b["cache_control"]) for n, b in enumerate(blocks) if "cache_control" in b]


@pytest.mark.parametrize(
    ("fields", "marks"),
    [
        ({}, [(-1, MARK)]),
        ({"tools": (ADD,)}, [("tools", MARK), (-1, MARK)]),
        ({"tools": (ADD,), "instructions": "I"}, [("system", MARK), (-1, MARK)]),
        ({"instructions": "I", "params": {"cache_control": None}}, []),
        (
            {"params": {"cache_control": {"type": "ephemeral", "ttl": "1h"}}},
            [(-1, {"type": "ephemeral", "ttl": "1h"})],
        ),
    ],
)
def test_the_prompt_cache(fields: dict[str, Any], marks: list[Any]) -> None:
    """The end of what stays the same and the end of the conversation are marked, unless the author says otherwise."""
    assert marked(body_of(request(user("a", "b"), assistant("c"), user("d", IMAGE), **fields))) == marks


def test_a_schema_for_the_answer() -> None:
    """What can be decoded under constraint is; anything else is told to the model."""
    assert body_of(request(user(), output_schema=CLOSED))["output_config"] == {
        "format": {"type": "json_schema", "schema": CLOSED}
    }
    for schema, params in [
        (FREE, {}),
        (CLOSED, {"output_config": {"format": None}}),
        (CLOSED, {"output_config": None}),
    ]:
        body = body_of(request(user(), output_schema=schema, params=params))
        assert not body.get("output_config")
        assert json.dumps(schema) in body["system"][0]["text"]


BLOB = {"type": "blob", "digest": "sha256:1", "size": 9, "preview": "p"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (request(user(BLOB)), "blob sha256:1"),
        (request(user(), assistant(BLOB)), "blob sha256:1"),
        (request(user(), assistant(call("c1")), result("c1", BLOB)), "blob sha256:1"),
        (request({"role": "system", "parts": [BLOB]}), "blob sha256:1"),
        (request({"role": "system", "parts": [IMAGE]}), "image cannot stand in a system message"),
        (request(user(), tools=(ADD,), tool_choice="sub"), "tool_choice 'sub' is none of the tools add"),
        (request(user(), tools=(ToolDefinition("a.b", "", {}),)), "tool 'a.b' cannot be offered"),
        (request(user(), tools=(ToolDefinition("x" * 129, "", {}),)), "cannot be offered"),
    ],
)
def test_what_the_format_cannot_say(asked: ModelRequest, words: str) -> None:
    """Each is refused before anything is sent, with its name."""
    with pytest.raises(ProviderError, match=words) as caught:
        PROVIDER.build(asked)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


def test_lone_surrogates_are_replaced() -> None:
    """A body can be encoded whatever the conversation holds, and thinking that cannot is left out."""
    asked = request(
        user("a \ud83d b"),
        assistant(thought("\ud83d", signature="s"), call("c1", arguments={"a\udc97": "\ud83d"})),
        result("c1", "\udc97"),
        instructions="\ud83d",
        tools=(ToolDefinition("t", "\udc97", {"type": "object", "description": "\udc97"}),),
    )
    body = judge(PROVIDER.build(asked))
    assert json.dumps(body, ensure_ascii=False).count("\ufffd") == 7
    assert [block["type"] for block in body["messages"][1]["content"]] == ["tool_use"]
