"""Requests of the Gemini API, against recorded bodies, by rule, and for any conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import MESSAGES
from perdure.model_call import ModelRequest, ToolDefinition
from providers.gemini.contents import EARLIER
from providers.pairing import INTERRUPTED
from tests.providers.gemini_oracle import (
    MODEL,
    OWN,
    PROVIDER,
    assistant,
    body,
    call,
    judge,
    request,
    result,
    text,
    user,
)

GOLDEN = Path(__file__).parent / "golden" / "gemini"

ADD = ToolDefinition(
    name="add",
    description="Sum of two numbers.",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
LIST = ToolDefinition("list_tasks", "All tasks.", {"type": "object", "properties": {}, "additionalProperties": False})
CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
IMAGE = {"type": "image", "base64": "aGk=", "media_type": "image/png"}
LINKED = {"type": "image", "url": "https://example.org/a.png?x=1"}
PDF = {"type": "document", "base64": "aGk=", "media_type": "application/pdf", "name": "a.pdf"}
SIGNED = {**OWN, "thoughtSignature": "c2lnLUE=", "id": "g1"}

REQUESTS: dict[str, ModelRequest] = {
    "plain": request(user("Hi"), instructions="Be kind.", max_tokens=100),
    "tools": request(user("1+2?"), tools=(ADD, LIST), tool_choice="add", parallel_tools=False, output_schema=CLOSED),
    "output": request(user("1+2?"), output_schema=CLOSED, params={"stream": False, "temperature": 0}),
    "tool_turn": request(
        user("1+2?"),
        assistant("Adding.", call("c1", details=SIGNED), call("c2", details={**OWN, "id": "g2"})),
        result("c2", "three", error=True),
        result("c1"),
        assistant("It is 3."),
        user("Thanks"),
        tools=(ADD,),
    ),
    "thinking": request(
        user(),
        assistant(
            {"type": "thinking", "text": "first", "details": OWN},
            {"type": "thinking", "text": "", "details": {**OWN, "thoughtSignature": "c2lnLUg="}},
            "It is 3.",
            text("", **OWN, thoughtSignature="c2lnLVo="),
        ),
        user("Sure?"),
    ),
    "files": request(
        user([text("Look:"), IMAGE, LINKED, PDF]),
        assistant(call("c1"), call("c2")),
        result("c1", [text("Here:"), IMAGE]),
        result("c2", [PDF]),
        user("What is it?"),
    ),
    "params": request(
        user(),
        max_tokens=50,
        params={
            "reasoning_effort": "low",
            "stop": "END",
            "seed": 7,
            "top_p": 0.5,
            "max_completion_tokens": 20,
            "generationConfig": {"thinkingConfig": {"includeThoughts": True}, "topK": 3},
        },
    ),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_golden_requests(case: str) -> None:
    """Each request gives the recorded body, which the SDK's types accept."""
    assert body(REQUESTS[case]) == json.loads((GOLDEN / f"{case}.request.json").read_text())


@pytest.mark.parametrize(
    ("model", "params", "path"),
    [
        ("gemini-x", {}, "/models/gemini-x:streamGenerateContent?alt=sse"),
        ("models/gemini-x", {"stream": True}, "/models/gemini-x:streamGenerateContent?alt=sse"),
        ("gemini-x", {"stream": False}, "/models/gemini-x:generateContent"),
        ("tunedModels/mine", {}, "/tunedModels/mine:streamGenerateContent?alt=sse"),
        ("vendor/x", {}, "/models/vendor/x:streamGenerateContent?alt=sse"),
        ("odd name?", {}, "/models/odd%20name%3F:streamGenerateContent?alt=sse"),
    ],
)
def test_path(model: str, params: dict[str, Any], path: str) -> None:
    """The model stands in the path, with or without its prefix, and the method says whether it streams."""
    wire = PROVIDER.build(request(user(), model=model, params=params))
    assert (wire.path, wire.stream) == (path, "stream" in path)
    assert "model" not in wire.body


@pytest.mark.parametrize(
    ("choice", "calling"),
    [
        ("auto", None),
        ("required", {"mode": "ANY"}),
        ("none", {"mode": "NONE"}),
        ("add", {"mode": "ANY", "allowedFunctionNames": ["add"]}),
    ],
)
def test_tool_choice(choice: str, calling: Any) -> None:
    """Each choice has its mode; `auto` is what the API does by itself."""
    sent = body(request(user(), tools=(ADD,), tool_choice=choice, parallel_tools=False))
    assert sent.get("toolConfig", {}).get("functionCallingConfig") == calling


def test_nothing_of_tools_without_tools() -> None:
    """A request without tools says nothing of them."""
    assert body(request(user(), tool_choice="required")).keys() == {"contents"}


@pytest.mark.parametrize(
    ("params", "config"),
    [
        ({}, {"maxOutputTokens": 10}),
        ({"max_tokens": 7}, {"maxOutputTokens": 7}),
        ({"max_completion_tokens": 7}, {"maxOutputTokens": 7}),
        ({"max_tokens": None}, None),
        ({"generationConfig": {"maxOutputTokens": 3}, "max_tokens": 7}, {"maxOutputTokens": 3}),
        ({"generationConfig": None}, None),
        ({"stop": ["a", "b"]}, {"maxOutputTokens": 10, "stopSequences": ["a", "b"]}),
        *(
            ({"reasoning_effort": effort}, {"maxOutputTokens": 10, "thinkingConfig": {"thinkingLevel": level}})
            for effort, level in [
                ("none", "MINIMAL"),
                ("minimal", "MINIMAL"),
                ("low", "LOW"),
                ("medium", "MEDIUM"),
                ("high", "HIGH"),
                ("xhigh", "XHIGH"),
                ("max", "XHIGH"),
            ]
        ),
        ({"reasoning_effort": None}, {"maxOutputTokens": 10}),
    ],
)
def test_params(params: dict[str, Any], config: Any) -> None:
    """Chat Completions' names go where the API has them; the API's own names win; None removes."""
    assert body(request(user(), max_tokens=10, params=params)).get("generationConfig") == config


def test_other_params_are_merged_into_the_body() -> None:
    """What we do not know goes along as it is, and wins over what we set."""
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    params = {"safetySettings": safety, "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}}}
    sent = PROVIDER.build(request(user(), tools=(ADD,), tool_choice="add", params=params)).body
    assert sent["safetySettings"] == safety
    assert sent["toolConfig"]["functionCallingConfig"] == {"mode": "VALIDATED", "allowedFunctionNames": ["add"]}


def test_output_beside_tools_is_told_in_the_instructions() -> None:
    """Many models refuse a JSON answer together with tools, so the schema is told in words."""
    sent = body(request(user(), instructions="I", tools=(ADD,), output_schema=CLOSED))
    assert "generationConfig" not in sent
    told = sent["systemInstruction"]["parts"][0]["text"]
    assert told.startswith("I\n\nAnswer with one JSON object")
    assert json.dumps(CLOSED) in told


def test_an_output_schema_that_is_too_deep_is_told_too() -> None:
    """A schema that cannot be reduced does not kill the request."""
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"x": deep}}
    sent = body(request(user(), output_schema=deep))
    assert "generationConfig" not in sent
    assert json.dumps(deep) in sent["systemInstruction"]["parts"][0]["text"]


def test_a_conversation_that_begins_with_the_model() -> None:
    """A user's turn is put before it; instructions alone are one."""
    sent = body(request(assistant(call("c1")), result("c1")))["contents"]
    assert [turn["role"] for turn in sent] == ["user", "model", "user"]
    assert sent[0]["parts"] == [{"text": EARLIER}]
    alone = body(request(instructions="I"))
    assert alone == {"contents": [{"role": "user", "parts": [{"text": "I"}]}]}


@pytest.mark.parametrize("foreign", [{"provider": "openai", "model": MODEL}, {"provider": "gemini", "model": "other"}])
def test_signatures_of_others_stay_at_home(foreign: dict[str, Any]) -> None:
    """A signature goes back only to the provider and the model that gave it; an id of the same provider may."""
    details = {**foreign, "thoughtSignature": "c2lnLUE=", "id": "g1"}
    thought = {"type": "thinking", "text": "t", "details": details}
    sent = body(request(user(), assistant(thought, text("x", **details), call("c1", details=details)), result("c1")))
    assert "c2lnLUE=" not in json.dumps(sent)
    kept = {"id": "g1"} if foreign["provider"] == "gemini" else {}
    assert sent["contents"][1]["parts"] == [
        {"text": "x"},
        {"functionCall": {**kept, "name": "add", "args": {"a": 1, "b": 2}}},
    ]


def test_ids_on_the_wire_are_unique() -> None:
    """A server that uses an id again does not make two calls look like one; a call without one gets none."""
    same = {**OWN, "id": "x"}
    turns = [
        assistant(call("c1", details=same), call("c2", details=same), call("c3", details={**OWN, "id": ""})),
        assistant(call("c4", details=same)),
    ]
    sent = body(request(user(), *turns, result("c4")))["contents"]
    calls = [part["functionCall"].get("id") for turn in sent for part in turn["parts"] if "functionCall" in part]
    assert calls == ["x", "x_2", None, "x_3"]


def test_a_made_up_tool_name_is_sent_in_a_form_that_is_accepted() -> None:
    """A call of a name that the format forbids does not poison the conversation, and its result has the same name."""
    calls = [call("c1", "get weather!"), call("c2", ""), call("c3", "9x" * 99), call("c4", "a.b:c-d")]
    sent = body(request(user(), assistant(*calls)))["contents"]
    names = [part["functionCall"]["name"] for part in sent[1]["parts"]]
    assert names == ["get_weather_", "_", ("_" + "9x" * 99)[:128], "a.b:c-d"]


def test_a_data_url_is_sent_as_data() -> None:
    """An address that holds the image itself is not taken for one of the web."""
    sent = body(request(user([{"type": "image", "url": "data:image/png;base64,aGk="}])))
    assert sent["contents"][0]["parts"] == [{"inlineData": {"mimeType": "image/png", "data": "aGk="}}]


BLOB = {"type": "blob", "digest": "sha256:1", "size": 9, "preview": "p"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (request(user([BLOB])), "blob sha256:1"),
        (request(user(), assistant(BLOB)), "blob sha256:1"),
        (request(user(), assistant(call("c1")), result("c1", [BLOB])), "blob sha256:1"),
        (request(user(), {"role": "system", "parts": [IMAGE]}), "image cannot stand in a system message"),
        (request(user([{"type": "image", "base64": "aGk="}])), "this image needs a url"),
        (request(user([{"type": "document", "name": "x"}])), "this document needs a url"),
        (request(user(), tools=(ADD,), tool_choice="sub"), "tool_choice 'sub' is none of the tools add"),
        (request(user(), tools=(ToolDefinition("a b", "", {}),)), "tool 'a b' cannot be offered"),
        (request(user(), tools=(ToolDefinition("1a", "", {}),)), "cannot be offered"),
        (request(user(), tools=(ToolDefinition("x" * 129, "", {}),)), "cannot be offered"),
        (request(), "needs a message or instructions"),
    ],
)
def test_what_the_format_cannot_say(asked: ModelRequest, words: str) -> None:
    """Each is refused before anything is sent, with its name."""
    with pytest.raises(ProviderError, match=words) as caught:
        PROVIDER.build(asked)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


WORDS = st.text(alphabet="aé\n 🌍\x00\ud83d", max_size=4)
DETAILS = st.sampled_from(
    [
        None,
        {},
        {"thoughtSignature": "b3du"},
        {**OWN, "thoughtSignature": "b3du", "id": "g1"},
        {**OWN, "id": "g2"},
        {**OWN, "thoughtSignature": ""},
        {"provider": "gemini", "model": "gemini-other", "thoughtSignature": "Zm9yZWlnbg=="},
        {"provider": "openai", "id": "fc_1", "encrypted_content": "Zm9yZWlnbg==", "thoughtSignature": "Zm9yZWlnbg=="},
        {"provider": "anthropic", "signature": "Zm9yZWlnbg=="},
    ]
)
TEXTS = st.builds(lambda words, details: {"type": "text", "text": words, "details": details}, WORDS, DETAILS)
FILES = st.sampled_from([IMAGE, LINKED, PDF, {"type": "document", "url": "https://example.org/x"}])
THOUGHTS = st.builds(lambda words, details: {"type": "thinking", "text": words, "details": details}, WORDS, DETAILS)
CALLS = st.builds(
    lambda call_id, tool, details, arguments, error: {
        **call(call_id, tool, details=details),
        "arguments": arguments,
        "error": error,
    },
    st.sampled_from(["c1", "c2", "c3", "c4", "c5"]),
    st.sampled_from(["add", "get wether", "", "1", "x" * 200]),
    DETAILS,
    st.dictionaries(WORDS, st.none() | st.booleans() | st.integers() | WORDS | st.lists(WORDS, max_size=2), max_size=2),
    st.none() | WORDS,
)
CONVERSATIONS = st.lists(
    st.one_of(
        st.builds(lambda parts: {"role": "system", "parts": parts}, st.lists(TEXTS, max_size=2)),
        st.builds(user, st.lists(TEXTS | FILES, max_size=3)),
        st.builds(lambda parts: assistant(*parts), st.lists(TEXTS | THOUGHTS | CALLS, max_size=5)),
        st.builds(
            lambda call_id, parts, error: result(call_id, parts, error=error),
            st.sampled_from(["c1", "c2", "c3", "c9"]),
            st.lists(TEXTS | FILES, max_size=2),
            st.booleans(),
        ),
    ),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(CONVERSATIONS)
def test_any_conversation_builds_a_request_that_is_accepted(conversation: list[dict[str, Any]]) -> None:
    """Whatever is stored: valid turns, each call with one result, own signatures byte for byte and no others."""
    asked = request(*conversation, instructions="I", tools=(ADD,))
    before = MESSAGES.dump_python(list(asked.messages))
    sent = body(asked)
    wire = [part for turn in sent["contents"] for part in turn["parts"]]
    parts = [part for message in asked.messages if message.role == "assistant" for part in message.parts]
    calls = [part for part in parts if part.type == "call"]
    results = [part["functionResponse"] for part in wire if "functionResponse" in part]
    assert len([part for part in wire if "functionCall" in part]) == len(calls) == len(results)
    assert all(len(answer["response"]) == 1 for answer in results)
    own = [
        part.details["thoughtSignature"]
        for part in parts
        if part.type != "blob"
        and part.details
        and part.details.get("thoughtSignature")
        and part.details.get("provider", "gemini") == "gemini"
        and part.details.get("model", MODEL) == MODEL
    ]
    assert [part["thoughtSignature"] for part in wire if "thoughtSignature" in part] == own
    assert "Zm9yZWlnbg==" not in json.dumps(sent)
    assert PROVIDER.build(asked).body == sent
    assert MESSAGES.dump_python(list(asked.messages)) == before


def test_a_call_without_a_result_is_answered() -> None:
    """The answer that is put in is an error, at the call's place."""
    sent = body(request(user(), assistant(call("c1"), call("c2")), result("c2", "three"), user("go on")))["contents"]
    assert [part.get("functionResponse", part) for part in sent[2]["parts"]] == [
        {"name": "add", "response": {"error": INTERRUPTED}},
        {"name": "add", "response": {"result": "three"}},
        {"text": "go on"},
    ]


def test_judge_is_strict() -> None:
    """The judge refuses a wrong name, a name that is not the wire's, and a call without its result."""
    wire = PROVIDER.build(REQUESTS["tool_turn"])
    for contents in (
        [{"role": "user", "parts": [{"txt": "x"}]}],
        [{"role": "user", "parts": [{"inline_data": {"mimeType": "image/png", "data": "aGk="}}]}],
        wire.body["contents"][:2],
    ):
        with pytest.raises((ValueError, AssertionError)):
            judge(type(wire)(path=wire.path, body={"contents": contents}))
