"""Authors' own judgements: the policy before tools run, the check before an answer is accepted."""

from __future__ import annotations

import inspect

from temporalio import activity
from temporalio.client import Client

from activities.beats import Beats
from activities.blobs import resolve_arguments, resolve_parts
from activities.policies import Policies
from activities.registry import Registry
from activities.rendering import render_error
from activities.stores.base import BlobStore
from activities.tool_threads import TimedOut, ToolThreads
from activities.transcript import Contexts, Transcripts, chain_of
from perdure.contracts import PolicyInput, PolicyOutput, VerifyInput, VerifyOutput
from perdure.messages import AssistantMessage, text_of
from perdure.verify import VerifyContext

VERIFY_SECONDS = 240.0


class CheckActivities:
    """Runs `policy=` and `verify=` of this worker's agents."""

    def __init__(
        self,
        client: Client,
        registry: Registry,
        threads: ToolThreads,
        transcripts: Transcripts,
        contexts: Contexts,
        store: BlobStore,
        policies: Policies,
    ) -> None:
        self._client = client
        self._registry = registry
        self._threads = threads
        self._transcripts = transcripts
        self._contexts = contexts
        self._store = store
        self._policies = policies

    @activity.defn(name="check_policy")
    async def check_policy(self, task: PolicyInput) -> PolicyOutput:
        """Decisions for all calls of a reply; whatever goes wrong denies."""
        context = await self._contexts.get(self._client)
        decisions = {}
        for call_id, tool, arguments in task.calls:
            whole = await resolve_arguments(arguments, task.whole.get(call_id), self._store)
            decision = await self._policies.judge(context, task.step, call_id, tool, whole)
            if decision.action != "allow":
                decisions[call_id] = (decision.action, decision.reason[:1_000])
        return PolicyOutput(decisions=decisions)

    @activity.defn(name="verify_answer")
    async def verify_answer(self, task: VerifyInput) -> VerifyOutput:
        """The check's verdict on the last message of the conversation."""
        async with Beats():
            context = await self._contexts.get(self._client)
            agent = self._registry.agents.get(context.spec.name)
            if agent is None or agent.verify is None:
                return VerifyOutput(problem=f"this worker has no check of agent {context.spec.name!r}", crashed=True)
            loaded = await self._transcripts.load(task.conversation, self._client, chain_of(task.conversation.run))
            messages = [m.model_copy(update={"parts": await resolve_parts(m.parts, self._store)}) for m in loaded]
            last = messages[-1]
            seen = VerifyContext(
                output=text_of(last) if isinstance(last, AssistantMessage) else "",
                structured=task.structured,
                messages=messages,
                data=context.data,
                tenant=context.tenant,
                user=context.user,
                metadata=context.metadata,
                state=self._threads.state_of(self._registry.home_of(context.spec.name)),
            )
            name = next(iter(inspect.signature(agent.verify).parameters), "ctx")
            try:
                outcome = await self._threads.run(agent.verify, {name: seen}, VERIFY_SECONDS)
            except TimedOut:
                return VerifyOutput(problem=f"it did not answer within {VERIFY_SECONDS:g} s", crashed=True)
        if outcome.error is not None:
            return VerifyOutput(problem=render_error(outcome.error), crashed=True)
        if outcome.value is not None and not isinstance(outcome.value, str):
            got = type(outcome.value).__name__
            return VerifyOutput(problem=f"it returned {got}, not None or what to fix", crashed=True)
        return VerifyOutput(problem=(outcome.value or None) and str(outcome.value)[:4_000])
