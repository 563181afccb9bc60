"""Authors' policies: asked about every call before it runs, and again when an approved one is about to."""

from __future__ import annotations

import inspect
from typing import Any

from activities.registry import Registry
from activities.rendering import render_error
from activities.tool_threads import TimedOut, ToolThreads
from perdure.contracts import PolicyCall, RunContext
from perdure.policy import PolicyDecision

POLICY_SECONDS = 8.0


class Policies:
    """Asks the policies of this worker's agents."""

    def __init__(self, registry: Registry, threads: ToolThreads) -> None:
        self._registry = registry
        self._threads = threads

    async def judge(
        self, context: RunContext, step: int, call_id: str, tool: str, arguments: dict[str, Any]
    ) -> PolicyDecision:
        """The decision about one call; a policy that is missing, late, broken or unclear denies."""
        agent = self._registry.agents.get(context.spec.name)
        spec = context.spec.tool(tool)
        if agent is None or agent.policy is None or spec is None:
            return PolicyDecision("deny", f"this worker has no policy of agent {context.spec.name!r}")
        call = PolicyCall(
            id=call_id,
            tool=tool,
            arguments=arguments,
            effect=spec.effect,
            agent=context.spec.name,
            step=step,
            permissions=spec.permissions,
            egress=spec.egress,
            untrusted=spec.untrusted,
            tenant=context.tenant,
            user=context.user,
            data=context.data,
            metadata=context.metadata,
        )
        name = next(iter(inspect.signature(agent.policy).parameters), "call")
        try:
            outcome = await self._threads.run(agent.policy, {name: call}, POLICY_SECONDS)
        except TimedOut:
            return PolicyDecision("deny", f"the policy did not answer within {POLICY_SECONDS:g} s")
        if outcome.error is not None:
            return PolicyDecision("deny", f"the policy failed: {render_error(outcome.error)}")
        if not isinstance(outcome.value, PolicyDecision):
            got = type(outcome.value).__name__
            return PolicyDecision("deny", f"the policy returned {got}, not allow(), deny(...) or ask(...)")
        return outcome.value
