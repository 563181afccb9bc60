"""The first step of every run: the agent as data, frozen, and what the server offers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from temporalio import activity
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.blobs import shrink_parts
from activities.registry import Registry
from activities.rendering import render_error
from activities.stores.base import BlobStore
from activities.transcript import Contexts
from perdure.agent import Agent, AgentSpec, evaluate_instructions
from perdure.agent_data import read_agent_data, spec_from_data
from perdure.arguments import near_names
from perdure.contracts import ResolveInput, ResolveOutput, RunContext
from perdure.errors import ConfigError
from perdure.messages import MESSAGES, Message
from perdure.model import parse_model
from perdure.outcomes import Outcome

KEYWORD, INT, DOUBLE = (
    IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    IndexedValueType.INDEXED_VALUE_TYPE_INT,
    IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
)
ATTRIBUTES = {
    "PerdureAgent": KEYWORD,
    "PerdureState": KEYWORD,
    "PerdureOutcome": KEYWORD,
    "PerdureTenant": KEYWORD,
    "PerdureUser": KEYWORD,
    "PerdureModel": KEYWORD,
    "PerdureSteps": INT,
    "PerdureTokens": INT,
    "PerdureCostUsd": DOUBLE,
}
"""Search attributes of runs, with their types."""

SPEC_BYTES = 1_000_000
"""A spec must fit the answer of a query."""


class ResolveActivities:
    """Turns what a run was started with into a complete AgentSpec."""

    def __init__(
        self,
        client: Client,
        registry: Registry,
        store: BlobStore,
        contexts: Contexts,
        allowed_urls: frozenset[str] = frozenset(),
        allowed_keys: frozenset[str] = frozenset(),
        decision_keys: tuple[str, ...] = (),
    ) -> None:
        self._client = client
        self._registry = registry
        self._store = store
        self._contexts = contexts
        self._allowed_urls = allowed_urls
        self._allowed_keys = allowed_keys
        self._decision_keys = decision_keys
        self._attributes: tuple[float, tuple[str, ...]] = (0.0, ())

    @activity.defn(name="resolve_agent")
    async def resolve_agent(self, given: ResolveInput) -> ResolveOutput:
        """The frozen spec; what cannot be resolved ends the run as invalid input, with the field named."""
        try:
            spec = await self._spec(given)
            lowered = spec.limits.lowered(given.limits)
        except ConfigError as error:
            raise _invalid(str(error)) from None
        if len(spec.model_dump_json()) > SPEC_BYTES:
            raise _invalid(f"agent: its spec is larger than {SPEC_BYTES} bytes; give it fewer or smaller tools")
        frozen = spec.model_copy(update={"limits": lowered})
        if given.about is not None:
            self._contexts.put(RunContext(spec=frozen, digest=frozen.digest, **dict(given.about)))
        return ResolveOutput(
            spec=frozen,
            digest=frozen.digest,
            attributes=await self._registered(),
            earlier=await self._earlier(given.continue_from),
            keys=self._decision_keys,
            most=spec.limits if lowered != spec.limits else None,
            large=tuple(
                [m.model_copy(update={"parts": await shrink_parts(m.parts, self._store)}) for m in given.large]
            ),
        )

    async def _spec(self, given: ResolveInput) -> AgentSpec:
        if isinstance(given.agent, str):
            agent = self._registry.agents.get(given.agent)
            if agent is None:
                known = list(self._registry.agents)
                near = near_names(given.agent, known) or known
                raise ConfigError(
                    f"agent: this worker has no agent {given.agent!r}; it has {', '.join(near)}. "
                    "All workers of a queue must serve the same agents: others need another PERDURE_TASK_QUEUE"
                )
            spec = agent.spec(self._registry.defaults, await _instructions(agent))
        else:
            spec = self._allowed(spec_from_data(read_agent_data(given.agent), self._registry.tool_spec))
        if given.output_schema is None:
            return spec
        return spec.model_copy(update={"output_schema": given.output_schema})

    def _allowed(self, spec: AgentSpec) -> AgentSpec:
        """An agent as data reaches only what this worker allows: a key must not go to a stranger's address."""
        for model in spec.all_models:
            parse_model(model)
            if model.base_url is not None and model.base_url not in self._allowed_urls:
                raise ConfigError(
                    f"agent.model.base_url: this worker does not allow {model.base_url!r} (PERDURE_ALLOWED_URLS)"
                )
            if model.api_key_env is not None and model.api_key_env not in self._allowed_keys:
                raise ConfigError(
                    f"agent.model.api_key_env: this worker does not allow {model.api_key_env!r} (PERDURE_ALLOWED_KEYS)"
                )
            if any("${" in value for value in model.headers.values()):
                raise ConfigError("agent.model.headers: an agent as data cannot name variables of the worker")
        if spec.webhook is not None and spec.webhook not in self._allowed_urls:
            raise ConfigError(f"agent.notify: this worker does not allow {spec.webhook!r} (PERDURE_ALLOWED_URLS)")
        return spec

    async def _earlier(self, workflow_id: str | None) -> tuple[Message, ...]:
        """The conversation of an earlier run."""
        if workflow_id is None:
            return ()
        handle = self._client.get_workflow_handle(workflow_id)
        messages: list[Message] = []
        following: int | None = 0
        try:
            while following is not None:
                page: dict[str, Any] = await handle.query("conversation", {"after": following})
                messages += MESSAGES.validate_python(page["messages"])
                following = page["next"]
        except RPCError as error:
            raise _invalid(f"continue_from: no run {workflow_id!r} here that can be asked: {error.message}") from None
        return tuple(messages)

    async def _registered(self) -> tuple[str, ...]:
        """Attributes of ours that the namespace has, with the right type; none where it cannot be asked."""
        known_at, known = self._attributes
        if known_at and time.monotonic() - known_at < 60:
            return known
        try:
            listed = await self._client.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace=self._client.namespace)
            )
        except RPCError as error:
            activity.logger.warning("search attributes cannot be listed: %s", error.message)
            return ()
        found = tuple(name for name, kind in ATTRIBUTES.items() if listed.custom_attributes.get(name) == kind)
        self._attributes = (time.monotonic(), found)
        return found


async def _instructions(agent: Agent) -> str:
    try:
        return await asyncio.to_thread(evaluate_instructions, agent)
    except ConfigError:
        raise
    except Exception as error:  # what the author's function raised cannot even be shown
        raise ConfigError(f"agent {agent.name!r}: instructions: {render_error(error)}") from error


def _invalid(message: str) -> ApplicationError:
    return ApplicationError(message, type=Outcome.INVALID_INPUT.value, non_retryable=True)
