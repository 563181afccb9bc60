"""Routers: which rule fits, what text models are shown, and what is known of models."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, ConfigError, Model, Router, RoutingRule
from perdure.agent import AgentSpec
from perdure.agent_data import read_agent_data, spec_from_data
from perdure.catalog import SAMPLING, facts_of
from perdure.messages import (
    MESSAGES,
    AssistantMessage,
    BlobPart,
    DocumentPart,
    ImagePart,
    Message,
    TextPart,
    ToolMessage,
    UserMessage,
    text,
    text_of,
)
from perdure.model import MOST_MODELS
from perdure.routing import in_words, shows

PICTURE = ImagePart(type="image", url="http://127.0.0.1/cat.png")
PAPER = DocumentPart(type="document", base64="aGk=", media_type="application/pdf", name="a.pdf")


def user(words: str = "Go.", *more: ImagePart | DocumentPart) -> UserMessage:
    """The user says something, and shows something."""
    return UserMessage(role="user", parts=(*text(words), *more))


def answer(words: str = "ok") -> AssistantMessage:
    """A model answers."""
    return AssistantMessage(role="assistant", parts=text(words))


def result(words: str = "found") -> ToolMessage:
    """A tool answers."""
    return ToolMessage(role="tool", call="c1", parts=text(words))


def chosen(messages: list[Message], vision: str | None = None, **rule: Any) -> str:
    """Which model a router with one rule chooses."""
    router = Router(
        default="scripted:plain",
        vision=f"scripted:{vision}" if vision else None,
        rules=(RoutingRule(model="scripted:ruled", **rule),) if rule else (),
    )
    steps = sum(isinstance(message, AssistantMessage) for message in messages)
    [model] = router.choose(messages, steps)
    return model.name


LARGE = BlobPart(type="blob", digest="d", size=100_000, preview="It begins with SQL")

CASES: list[tuple[str, list[Message], dict[str, Any], str]] = [
    ("nothing", [user()], {}, "plain"),
    ("contains", [user("Write SQL please")], {"contains": "sql"}, "ruled"),
    ("case", [user("STRASSE")], {"contains": "straße"}, "ruled"),
    ("other words", [user("Write prose")], {"contains": "sql"}, "plain"),
    ("earlier words", [user("SQL"), answer(), user("Thanks")], {"contains": "sql"}, "plain"),
    ("words of others", [user("Go."), answer("SQL"), result("SQL")], {"contains": "sql"}, "plain"),
    ("words before results", [user("SQL"), answer(), result()], {"contains": "sql"}, "ruled"),
    ("a preview", [UserMessage(role="user", parts=(LARGE,))], {"contains": "sql"}, "ruled"),
    ("nobody asked", [answer("sql")], {"contains": "sql"}, "plain"),
    ("as long", [user("x" * 10)], {"above_chars": 10}, "plain"),
    ("longer", [user("x" * 9), answer("xx")], {"above_chars": 10}, "ruled"),
    ("large texts count whole", [UserMessage(role="user", parts=(LARGE,))], {"above_chars": 99_999}, "ruled"),
    ("early", [user(), answer()], {"after_steps": 2}, "plain"),
    ("late", [user(), answer(), result(), answer()], {"after_steps": 2}, "ruled"),
    ("all of them", [user("sql"), answer("x" * 20)], {"contains": "sql", "above_chars": 9, "after_steps": 1}, "ruled"),
    ("not all", [user("sql"), answer("x" * 20)], {"contains": "sql", "above_chars": 9, "after_steps": 2}, "plain"),
    ("a picture", [user("sql", PICTURE)], {"contains": "sql", "vision": "eyes"}, "eyes"),
    ("a document", [user("sql", PAPER)], {"contains": "sql", "vision": "eyes"}, "eyes"),
    ("a picture and results", [user("", PICTURE), answer(), result()], {"vision": "eyes"}, "eyes"),
    ("an earlier picture", [user("", PICTURE), answer(), user("sql")], {"contains": "sql", "vision": "eyes"}, "ruled"),
    ("a picture without vision", [user("sql", PICTURE)], {"contains": "sql"}, "ruled"),
]


@pytest.mark.parametrize(("messages", "rule", "model"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_which_model_answers(messages: list[Message], rule: dict[str, Any], model: str) -> None:
    """Pictures of the last user message first, then the rule whose every condition fits, else the default."""
    assert chosen(messages, **rule) == model


def test_the_first_rule_that_fits_counts() -> None:
    """In the order in which they are written; a rule without a condition always fits."""
    given: dict[str, dict[str, Any]] = {"a": {"contains": "x"}, "b": {"after_steps": 0}, "c": {}}
    rules = [RoutingRule(model=f"scripted:{name}", **fields) for name, fields in given.items()]
    router = Router(default="scripted:plain", rules=rules)
    assert [router.choose([user(words)], 0)[0].name for words in ("x", "y")] == ["a", "b"]
    assert [model.name for model in router.models] == ["plain", "a", "b", "c"]


def test_what_text_models_are_shown() -> None:
    """A note in place of each picture and document; everything else stays as it is."""
    message = user("See", PICTURE, PAPER)
    assert text_of(in_words(message)) == (
        "See[image left out: this model reads text only][document left out: this model reads text only]"
    )
    shown = ToolMessage(role="tool", call="c1", parts=(PICTURE,), error=True, id="m4")
    assert in_words(shown) == shown.model_copy(
        update={"parts": (TextPart(type="text", text="[image left out: this model reads text only]"),)}
    )
    for plain in (user(), answer(), result()):
        assert in_words(plain) is plain
        assert not shows(plain)
    MESSAGES.validate_python([in_words(message).model_dump()])


TEXT_ONLY = ["deepseek-chat", "deepseek/deepseek-v4-pro", "DeepSeek-R1", "gpt-oss:20b", "openai/gpt-oss-120b",
             "gpt-3.5-turbo", "o1-mini", "meta-llama/Llama-3.3-70B-Instruct", "llama3.1:8b", "kimi-k2-thinking",
             "qwen3:8b", "qwen2.5-72b-instruct", "qwen-max", "mixtral-8x7b"]  # fmt: skip
SEEING = ["gpt-4o", "gpt-5-mini", "claude-opus-5", "gemini-2.5-flash", "no-such-model-anywhere", "llama-4-maverick",
          "meta-llama/Llama-3.2-11B-Vision-Instruct", "llama3.2-vision:11b", "kimi-k2.5", "qwen3-vl-235b",
          "qwen2.5vl:7b", "qwen-vl-max", "qwen3-omni-30b", "qwen3.5-397b", "deepseek-vl2", "deepseek-ocr"]  # fmt: skip


@pytest.mark.parametrize("name", TEXT_ONLY + SEEING)
def test_what_reads_pictures(name: str) -> None:
    """Families of text models are known, everything else reads pictures; the model's own word wins."""
    assert facts_of(Model(provider="compatible", name=name)).images is (name in SEEING)
    for images in (True, False):
        assert facts_of(Model(provider="compatible", name=name, images=images)).images is images


def test_what_is_refused() -> None:
    """It is known by the name, whatever a gateway puts before it, and stays known beside an own word on pictures."""
    for name in ("claude-opus-5", "anthropic/claude-sonnet-5"):
        assert facts_of(Model(provider="openrouter", name=name, images=False)).refuses >= SAMPLING
    assert facts_of(Model(provider="openai-chat", name="gpt-4o")).refuses == frozenset()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "default: Field required"),
    ({"default": "oops"}, "default: model: 'oops' is not 'provider:model'"),
    ({"default": []}, f"default: must be a model, or a list of 1 to {MOST_MODELS}"),
    ({"default": ["scripted"] * 7}, f"default: must be a model, or a list of 1 to {MOST_MODELS}"),
    ({"default": "nobody:m"}, "default: model: provider: must be one of"),
    ({"default": "scripted", "vision": "x"}, "vision: model: 'x'"),
    ({"default": "scripted", "rules": [{"contains": "x"}]}, "rules.0.model: Field required"),
    ({"default": "scripted", "rules": [{"model": "scripted", "contains": ""}]}, "rules.0.contains"),
    ({"default": "scripted", "rules": [{"model": "scripted", "above_chars": -1}]}, "rules.0.above_chars"),
    ({"default": "scripted", "rules": [{"model": "scripted", "when": "x"}]}, "rules.0.when"),
    ({"default": "scripted", "fallback": "scripted"}, "fallback"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG)
def test_what_is_wrong_with_a_router(fields: dict[str, Any], words: str) -> None:
    """It is named where it is written, in Python and in an agent as data."""
    with pytest.raises(ConfigError) as written:
        Router(**fields)
    assert words in str(written.value)
    data = read_agent_data({"name": "a", "router": fields})
    with pytest.raises(ConfigError) as given:
        spec_from_data(data, lambda name: None)
    assert str(given.value).startswith("agent.router: ")
    assert words in str(given.value)


@pytest.mark.parametrize("model", [None, "scripted"])
def test_a_model_or_a_router(model: str | None) -> None:
    """One of them, in Python and as data."""
    router = None if model is None else Router(default="scripted")
    with pytest.raises(ConfigError, match="agent 'a': model: must be given, or a router instead"):
        Agent("a", model, router=router)
    data = {"name": "a", "model": model, "router": router and {"default": "scripted"}}
    with pytest.raises(ConfigError, match=r"agent\.model: must be given, or a router instead"):
        spec_from_data(read_agent_data(data), lambda name: None)


def test_a_frozen_spec_is_read_by_every_worker() -> None:
    """Also by one that has no such provider: only its calls fail."""
    frozen = Agent("a", router=Router(default="scripted", rules=[RoutingRule(model=["scripted", "scripted:b"])])).spec()
    data = frozen.model_dump(mode="json")
    assert AgentSpec.model_validate(data) == frozen
    data["router"]["rules"][0]["model"][1]["provider"] = "own-of-another-worker"
    assert AgentSpec.model_validate(data).all_models[-1].provider == "own-of-another-worker"
