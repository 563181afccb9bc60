"""The Chat Completions format as its vendor's own types see it: requests strictly, replies side by side."""

from __future__ import annotations

import copy
import json
from typing import Any

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

from perdure.messages import Message
from perdure.model_call import Finish, ModelReply, ModelRequest, RawCall, RawText
from providers import REGISTRY
from providers.base import WireResponse
from providers.chat.provider import ChatCompletions
from providers.chat.request import Quirks
from providers.sse import Decoder
from providers.text import clean
from tests.providers.conversations import SECRET, Details, conversations, documents, images, texts
from tests.providers.oracle import strict
from tests.providers.test_chat_request import ADD, FREE, GOLDEN, REQUESTS

ON_PURPOSE = frozenset({"reasoning_content", "reasoning", "reasoning_details", "extra_content"})
"""Fields that compatible servers want back and that the vendor's own types do not know."""
EXTRAS = {"reasoning": {"reasoning_content", "reasoning_details"}, "signature": {"extra_content"}}
"""Which of them a recorded request has."""


def without_extras(body: Any) -> tuple[Any, set[str]]:
    """The body without what compatible servers want back, and the fields that were taken out."""
    taken = set()
    plain = copy.deepcopy(dict(body))
    for turn in plain["messages"]:
        for entry in [turn, *turn.get("tool_calls", ())]:
            for field in ON_PURPOSE & entry.keys():
                taken.add(field)
                del entry[field]
    return plain, taken


def judge(body: Any) -> None:
    """Raise where the vendor's types refuse a body."""
    params = CompletionCreateParamsStreaming if body["stream"] else CompletionCreateParamsNonStreaming
    strict(params).validate_python(body)


@pytest.mark.parametrize("case", REQUESTS)
def test_golden_requests_are_accepted(case: str) -> None:
    """Each recorded request but for what it sends on purpose."""
    name, asked = REQUESTS[case]
    provider = REGISTRY[name].provider
    assert isinstance(provider, ChatCompletions)
    plain, taken = without_extras(provider.build(asked).body)
    assert taken == EXTRAS.get(case, set())
    judge(plain)


OWN = {"provider": "srv"}
THOUGHTS: Details = st.sampled_from(
    [
        {**OWN, "reasoning_content": True},
        {**OWN, "reasoning": True, "reasoning_details": [{"type": "reasoning.text", "text": "2+2"}]},
        OWN,
    ]
)
CALLS: Details = st.sampled_from(
    [
        {**OWN, "id": "call_1"},
        {**OWN, "id": "c1", "extra_content": {"google": {"thought_signature": "c2ln"}}},
        {**OWN, "id": ""},
        {"id": "call_1"},
    ]
)
QUIRKS = st.builds(
    Quirks,
    max_tokens_field=st.sampled_from(["max_tokens", "max_completion_tokens"]),
    system=st.sampled_from(["system", "developer", "user"]),
    merge_turns=st.booleans(),
    reasoning=st.sampled_from(["echo", "require", "omit"]),
    output=st.sampled_from(["json_schema", "json_object", "instructions"]),
)
HISTORIES = conversations(
    thinking=THOUGHTS,
    call=CALLS,
    system=texts(),
    user=texts() | images() | documents(linked=False),
    result=texts() | images() | documents(),
)


@given(HISTORIES, QUIRKS)
def test_any_conversation_is_accepted(history: tuple[Message, ...], quirks: Quirks) -> None:
    """Whatever a run has stored, the types accept it, calls and results are paired, and nothing foreign is sent."""
    asked = ModelRequest("m", "I", history, tools=(ADD,), output_schema=FREE, max_tokens=5)
    body = ChatCompletions("srv", quirks).build(asked).body
    plain, taken = without_extras(body)
    judge(plain)
    assert quirks.reasoning != "omit" or taken <= {"extra_content"}
    assert SECRET not in json.dumps(body)
    sent = body["messages"]
    called = [[entry["id"] for entry in turn.get("tool_calls", ())] for turn in sent]
    answered = [turn["tool_call_id"] for turn in sent if turn["role"] == "tool"]
    ids = [call_id for turn in called for call_id in turn]
    assert ids == answered
    assert len(ids) == len(set(ids)) == sum(len(message.calls) for message in history if message.role == "assistant")
    for at, turn in enumerate(called):
        following = sent[at + 1 : at + 1 + len(turn)]
        assert [answer.get("tool_call_id") for answer in following] == turn
    signed = [entry for turn in sent for entry in turn.get("tool_calls", ()) if "extra_content" in entry]
    assert all(entry["extra_content"] == {"google": {"thought_signature": "c2ln"}} for entry in signed)


FINISH = {
    "stop": Finish.STOP,
    "tool_calls": Finish.STOP,
    "length": Finish.LENGTH,
    "content_filter": Finish.FILTERED,
    None: Finish.STOP,
}
BODIES = [
    "announced_empty_list",
    "announced_null",
    "cut_but_tool_calls",
    "cut_by_length",
    "deepseek_reasoning",
    "gemini_signature",
    "null_finish",
    "openrouter_details",
    "refusal",
    "same_id_twice",
    "stop_with_calls",
    "usage_details",
    "whole_but_length",
]
NOT_THE_VENDORS_BODIES = {
    "content_parts": "content is a list",
    "function_call": "a call in the field before tool_calls",
    "object_arguments": "arguments are objects",
    "unsupported_parameter": "an error",
}
STREAMS = ["cut_by_length", "deepseek", "no_done", "openai", "openrouter", "surrogates"]
NOT_THE_VENDORS_STREAMS = {
    "azure_filter": "a delta is null",
    "done_only": "does not end",
    "error_chunk": "an error",
    "finish_error": "an error",
    "insufficient_resource": "an error",
    "interleaved": "an id and a name come late",
    "name_repeated": "the whole name in each delta",
    "no_index": "deltas without an index",
    "same_index": "two calls at one index",
}


def test_every_golden_reply_is_compared_or_says_why_not() -> None:
    """No recorded reply is passed over in silence."""
    bodies = {path.name.removesuffix(".response.json") for path in GOLDEN.glob("*.response.json")}
    assert bodies == {*BODIES, *NOT_THE_VENDORS_BODIES}
    assert {path.stem for path in GOLDEN.glob("*.sse")} == {*STREAMS, *NOT_THE_VENDORS_STREAMS}


def compare(read: ChatCompletion, got: ModelReply) -> None:
    """Raise where the vendor's own reading of a reply is another than ours."""
    choice = read.choices[0]
    told = clean((choice.message.content or "") + (choice.message.refusal or ""))
    assert "".join(part.text for part in got.parts if isinstance(part, RawText)) == told
    called: list[Any] = list(choice.message.tool_calls or ())
    assert [(c.tool, c.arguments, (c.details or {}).get("id")) for c in got.parts if isinstance(c, RawCall)] == [
        (entry.function.name, entry.function.arguments, entry.id) for entry in called
    ]
    assert got.finish is (Finish.REFUSED if choice.message.refusal else FINISH[choice.finish_reason])
    assert got.announced_calls is (choice.finish_reason == "tool_calls")
    assert got.model == (getattr(read, "model", None) or "")
    usage = getattr(read, "usage", None)
    if usage is None:
        assert got.usage is None
        return
    assert got.usage
    answer = {"model": "gpt-5-mini", "usage": usage.model_dump()}
    priced = genai_prices.extract_usage(answer, provider_id="openai", api_flavor="chat").usage
    assert got.usage.input_tokens == usage.prompt_tokens == priced.input_tokens
    assert got.usage.output_tokens == usage.completion_tokens == priced.output_tokens
    given, answered = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = (given and given.cached_tokens) or getattr(usage, "prompt_cache_hit_tokens", 0)
    assert got.usage.cached_tokens == cached
    assert got.usage.reasoning_tokens == ((answered and answered.reasoning_tokens) or 0)


@pytest.mark.parametrize("case", BODIES)
def test_golden_bodies_are_read_alike(case: str) -> None:
    """Text, calls, finish and usage of a whole reply."""
    body = (GOLDEN / f"{case}.response.json").read_bytes()
    got = ChatCompletions("srv").parse(WireResponse(200, {}, body))
    read: Any = construct_type(type_=ChatCompletion, value=json.loads(body))
    compare(read, got)


@pytest.mark.parametrize("case", STREAMS)
def test_golden_streams_are_read_alike(case: str) -> None:
    """Text, calls, finish and usage of a streamed reply, put together by the vendor's client and by us."""
    fold, state = ChatCompletions("srv").fold(), ChatCompletionStreamState()
    for event in Decoder().feed((GOLDEN / f"{case}.sse").read_bytes()):
        fold.feed(event)
        if event.data != "[DONE]":
            value = json.loads(event.data)
            # Recorded chunks are as small as servers make them; the vendor's client wants an index.
            value["choices"] = [{"index": 0, **choice} for choice in value["choices"]]
            chunk: Any = construct_type(type_=ChatCompletionChunk, value=value)
            state.handle_chunk(chunk)
    compare(state.current_completion_snapshot, fold.finish())
