"""The contract of public names: what programs outside rely on. A change of these tables is a breaking change."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
from pydantic import BaseModel

import perdure
from activities.resolve import ATTRIBUTES
from perdure import cli
from perdure.agent_data import AgentData
from perdure.approval import Decision, Pending
from perdure.contracts import AGENT_WORKFLOW, TASK_QUEUE, PolicyCall
from perdure.embedded import SEARCH_ATTRIBUTES
from perdure.errors import ErrorKind
from perdure.limits import LimitsOverride
from perdure.messages import Usage
from perdure.outcomes import FAILING
from perdure.questions import Answer
from perdure.run_input import GivenMessage, RunInput
from perdure.strategies import STRATEGIES
from perdure.tools import Effect, ToolOptions
from perdure.verify import ToolCallRecord, VerifyContext
from providers import REGISTRY
from tests.checkout import ROOT
from workflows import views
from workflows.agent import AgentWorkflow
from workflows.family import Family
from workflows.inbox import Inbox, Said, StopRequest
from workflows.state import RunState

NAMES = """
Agent AlreadyStarted Approval Client ConfigError Document Escalation Handle Image InvalidInput Limits MessageRefused
Model ModelReply ModelRequest NoAnswer NoSuchRun Notification Outcome PerdureError Price ProviderError RetryTool
Router RoutingRule
RunCancelled RunFailed RunResult RunStatus StreamEvent Tool ToolContext ToolDefaults ToolLoop Unreachable allow ask
ask_human deny human local provider tool
"""

FIELDS: dict[Any, str] = {
    RunInput: "agent prompt messages data output_schema tenant user limits metadata continue_from",
    GivenMessage: "role content",
    LimitsOverride: "steps tool_calls tokens cost_usd deadline",
    AgentData: """name model instructions tools strategy limits output_schema parallel_tools tool_choice corrections
                  on_limit notify groups router""",
    perdure.RunResult: "outcome output structured reason steps tool_calls usage cost_usd agent spec_digest",
    Usage: "input_tokens cached_tokens output_tokens reasoning_tokens",
    perdure.Limits: "steps tool_calls tokens cost_usd deadline",
    perdure.Approval: "approvers quorum timeout on_timeout not_requester escalate remind_every verified",
    perdure.Escalation: "approvers quorum timeout",
    perdure.Notification: "kind run agent tenant user metadata call question limit deadline tokens",
    perdure.Model: """provider name base_url path headers api_key_env params price unknown_price
                      images""",
    perdure.Router: "default vision rules",
    perdure.RoutingRule: "model contains above_chars after_steps",
    perdure.Price: "input output cached",
    perdure.ToolLoop: "max_repeats max_nudges max_cut max_idle",
    ToolOptions: """effect approval timeout quick attempts heartbeat queue final on_unknown untrusted egress permissions
                    max_result_chars""",
    Decision: "call_id approve by reason digest arguments remember token",
    Pending: """call_id tool arguments digest requested_at deadline reason stage quorum decisions approvers run
                whole""",
    Said: "text message_id",
    Answer: "question_id text by",
    StopRequest: "reason",
    PolicyCall: "id tool arguments effect agent step permissions egress untrusted tenant user data metadata",
}

DATACLASSES: dict[Any, str] = {
    perdure.ToolContext: """run_id call_id tool idempotency_key attempt agent tenant user data metadata state heartbeat
                            heartbeat_details""",
    VerifyContext: "output structured messages data tenant user metadata state",
    ToolCallRecord: "call_id tool arguments result error",
}

OUTCOMES = "success no_solution budget_exceeded timeout blocked invalid_input failed cancelled"
MESSAGES = "decide approve deny say answer extend stop"
COMMANDS = """dev worker run list show events approvals approve deny say answer extend stop cancel replay export
              decision-key init doctor"""
RUN, BOARD = RunState(), views.Board()
QUERIES = "status approvals conversation events usage spec"
PROVIDERS = """anthropic bifrost cloudflare compatible deepseek gemini groq kong litellm mlflow moonshot ollama openai
               openai-chat openrouter portkey recorded scripted vercel vllm"""
STATUS = """state agent activity step tool_calls outcome reason message output usage cost_usd unpriced_calls limits
            pending questions said stopping paused paused_until"""
ERROR_KINDS = """invalid_request authentication not_found quota rate_limit overloaded server connection timeout stalled
                 truncated_stream malformed context_length configuration"""
SEARCH = {
    "PerdureAgent": "Keyword",
    "PerdureState": "Keyword",
    "PerdureOutcome": "Keyword",
    "PerdureTenant": "Keyword",
    "PerdureUser": "Keyword",
    "PerdureModel": "Keyword",
    "PerdureSteps": "Int",
    "PerdureTokens": "Int",
    "PerdureCostUsd": "Double",
}
AGENT_OPTIONS = """name model instructions tools limits strategy output verify policy notify on_limit groups
                   parallel_tools tool_choice corrections tool_defaults description router"""


def test_exported_names() -> None:
    """`from perdure import ...` offers these names, and each exists."""
    assert sorted(perdure.__all__) == sorted(NAMES.split())
    assert [name for name in perdure.__all__ if not hasattr(perdure, name)] == []


def test_importing_is_light() -> None:
    """`import perdure` loads no Temporal and no HTTP client: workflows and agents files import it."""
    source = "import sys, perdure; print([n for n in ('temporalio', 'httpx2', 'typer', 'rich') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("model", FIELDS, ids=lambda m: m.__name__)
def test_fields_of_data(model: type[BaseModel]) -> None:
    """Data that crosses the border has these fields, in this order."""
    assert list(model.model_fields) == FIELDS[model].split()


@pytest.mark.parametrize("cls", DATACLASSES, ids=lambda c: c.__name__)
def test_fields_of_what_functions_are_given(cls: Any) -> None:
    """What tools, policies and checks are given has these fields."""
    assert list(cls.__dataclass_fields__) == DATACLASSES[cls].split()


def test_options_of_an_agent() -> None:
    """`Agent(...)` takes these, the first four by position."""
    parameters = list(inspect.signature(perdure.Agent).parameters.values())
    assert [p.name for p in parameters] == AGENT_OPTIONS.split()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == [
        "name",
        "model",
        "instructions",
        "tools",
    ]


def test_options_of_a_tool() -> None:
    """`@tool(...)` takes a name and every option."""
    assert set(ToolOptions.model_fields) == set(perdure.ToolDefaults.model_fields)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([o.value for o in perdure.Outcome], OUTCOMES),
        (Inbox(RUN, BOARD, Family(RUN, BOARD)).names, MESSAGES),
        ([n for n, m in vars(AgentWorkflow).items() if hasattr(m, "__temporal_query_definition")], QUERIES),
        (list(REGISTRY), PROVIDERS),
        (list(STRATEGIES), "ToolLoop"),
        (list(cli.COMMANDS), COMMANDS),
        (list(views.status(RunState())), STATUS),
        ([k.value for k in ErrorKind], ERROR_KINDS),
        ([o.value for o in sorted(FAILING)], "failed invalid_input"),
    ],
    ids=[
        "outcomes",
        "messages",
        "queries",
        "providers",
        "strategies",
        "commands",
        "status",
        "error kinds",
        "failing outcomes",
    ],
)
def test_words_of_the_protocol(found: list[str], expected: str) -> None:
    """Outcomes, messages, queries and the like have these names."""
    assert sorted(found) == sorted(expected.split())


def test_search_attributes() -> None:
    """Runs are found by these attributes of these types, and the embedded server registers the same."""
    assert dict(SEARCH_ATTRIBUTES) == SEARCH
    assert set(ATTRIBUTES) == {*views.KEYWORDS, *views.INTS, views.COST.name} == set(SEARCH)


def test_names_on_the_wire() -> None:
    """Workflow type and queue are what the documents say."""
    assert (AGENT_WORKFLOW, TASK_QUEUE) == ("AgentWorkflow", "perdure")


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        ("read", ("none", 3, "tell")),
        ("idempotent", ("none", 3, "tell")),
        ("write", ("none", 1, "tell")),
        ("dangerous", ("deny", 1, "ask")),
    ],
)
def test_effects_decide(effect: Effect, expected: tuple[str, int, str]) -> None:
    """Approval, attempts and the rule for unknown outcomes follow from the effect."""

    def deed() -> str:
        return "done"

    made = perdure.tool(effect=effect)(deed).spec
    assert (made.approval.on_timeout if made.approval else "none", made.attempts, made.on_unknown) == expected


def test_default_limits() -> None:
    """Every run is bounded without a word."""
    limits = perdure.Limits()
    assert (limits.steps, limits.tool_calls, limits.tokens, limits.cost_usd) == (50, 200, 1_000_000, None)
    assert (limits.deadline.total_seconds(), perdure.Approval().timeout.total_seconds()) == (3_600, 86_400)
