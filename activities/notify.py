"""The activity that tells people what waits for them: the agent's function, or a webhook."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.http import HttpClient, deliver
from activities.registry import Registry
from activities.rendering import render_error
from activities.tool_threads import TimedOut, ToolThreads
from activities.transcript import Contexts
from perdure.approval import GROUP, Pending
from perdure.contracts import NotifyInput, NotifyOutput, RunContext
from perdure.decision_tokens import sign_decision
from perdure.errors import ProviderError
from perdure.notification import Notification

SECONDS = 10.0
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class NotifyActivities:
    """Sends notifications; `key` is the private key that signs decision tokens, if the worker has one."""

    def __init__(
        self,
        client: Client,
        registry: Registry,
        threads: ToolThreads,
        contexts: Contexts,
        http: HttpClient,
        environment: Mapping[str, str],
        key: str | None,
    ) -> None:
        self._client = client
        self._registry = registry
        self._threads = threads
        self._contexts = contexts
        self._http = http
        self._environment = environment
        self._key = key

    @activity.defn(name="notify")
    async def notify(self, notice: NotifyInput) -> NotifyOutput:
        """One attempt to tell; a failure is tried again a few times and then left."""
        context = await self._contexts.get(self._client)
        told = self._notification(notice, context)
        if context.spec.webhook:
            await self._post(context.spec.webhook, told, notice.key)
        else:
            await self._call(context.spec.name, told)
        return NotifyOutput()

    def _notification(self, notice: NotifyInput, context: RunContext) -> Notification:
        run = activity.info().workflow_id or ""
        return Notification(
            kind=notice.kind,
            run=run,
            agent=context.spec.name,
            tenant=context.tenant,
            user=context.user,
            metadata=context.metadata,
            call=notice.call,
            question=notice.question,
            limit=notice.limit,
            deadline=notice.deadline or (notice.call.deadline.isoformat() if notice.call else None),
            tokens=self._tokens(run, notice.call, context),
        )

    def _tokens(self, run: str, call: Pending | None, context: RunContext) -> dict[str, str]:
        """A token for everybody who is named as an approver, the members of groups included."""
        if call is None or self._key is None:
            return {}
        names: dict[str, set[str]] = {}
        for name in call.approvers:
            group = name.removeprefix(GROUP) if name.startswith(GROUP) else None
            for person in context.spec.groups.get(group, ()) if group else (name,):
                names.setdefault(person, set()).update({group} if group else ())
        bound: Any = {"run": run, "call_id": call.call_id, "digest": call.digest, "expires": call.deadline}
        return {name: sign_decision(self._key, by=name, groups=groups, **bound) for name, groups in names.items()}

    async def _post(self, address: str, told: Notification, key: str) -> None:
        missing = [name for name in _VARIABLE.findall(address) if name not in self._environment]
        if missing:
            raise _failed(f"set {missing[0]} in the environment of the worker")
        url = _VARIABLE.sub(lambda match: self._environment[match.group(1)], address)
        try:
            status = await deliver(self._http, url, told.model_dump(mode="json"), {"idempotency-key": key}, SECONDS)
        except ProviderError as error:
            raise _failed(str(error)) from None
        if not 200 <= status < 300:
            raise _failed(f"the webhook answered {status}", final=400 <= status < 500 and status not in {408, 429})

    async def _call(self, name: str, told: Notification) -> None:
        agent = self._registry.agents.get(name)
        if agent is None or not callable(agent.notify):
            raise _failed(f"this worker has no notify function of agent {name!r}")
        try:
            outcome = await self._threads.run(_one_argument(agent.notify), {"told": told}, SECONDS)
        except TimedOut:
            raise _failed(f"the notify function did not end within {SECONDS:g} s") from None
        if outcome.error is not None:
            raise _failed(f"the notify function failed: {render_error(outcome.error)}")
        if inspect.iscoroutine(outcome.value):
            outcome.value.close()
            raise _failed("the notify function returned a coroutine; write it with `async def`", final=True)


def _one_argument(function: Callable[[Notification], Any]) -> Callable[..., Any]:
    """The function with its argument named, whatever its author calls it."""
    waits = inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__ is async too
    )
    if not waits:
        return lambda told: function(told)

    async def call(told: Notification) -> Any:
        return await function(told)

    return call


def _failed(why: str, *, final: bool = False) -> ApplicationError:
    return ApplicationError(why, type="NotifyFailed", non_retryable=final)
