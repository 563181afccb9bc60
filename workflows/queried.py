"""Puts runs aside that a query has brought ahead of their history.

A query to a worker that does not hold the run makes it apply even what no workflow task has taken yet (a result that
came while no worker was there), and the SDK keeps the run so. A message that comes then is handled after that result;
a replay, where both belong to one workflow task, handles the message first. The run would never replay again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from temporalio.bridge.proto.workflow_activation import RemoveFromCache, WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.workflow import Info


class QuerySafeRunner(WorkflowRunner):
    """Another runner, with an eye on what brought each run here; `evict` is set once its worker exists."""

    def __init__(self, runner: WorkflowRunner) -> None:
        self._runner = runner
        self.evict: Callable[[str], None] | None = None
        self.left: Callable[[str, bool], None] = lambda run_id, ended: None
        """Told of every run that leaves this worker, and whether its end is recorded now."""

    def prepare_workflow(self, defn: Any) -> None:
        """See base class."""
        self._runner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """See base class."""
        self._runner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See base class."""
        return _Watched(self._runner.create_instance(det), det.info.run_id, self)


RECORDED = {RemoveFromCache.WORKFLOW_EXECUTION_ENDING, RemoveFromCache.CACHE_FULL}
"""Why a run leaves whose end is recorded; without room for any run the second stands for both."""
_NO_CONTEXT = StorageDriverStoreContext(target=None)


class _Watched(WorkflowInstance):
    """One run on this worker."""

    def __init__(self, run: WorkflowInstance, run_id: str, runner: QuerySafeRunner) -> None:
        self._run = run
        self._run_id = run_id
        self._runner = runner
        self._loaded = False
        """Whether it was brought here by replaying its history."""
        self._fresh: set[int] = set()
        """Lengths of history at which something new came: one may be a query's doing, two prove a workflow task."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """See base class."""
        if any(job.HasField("query_workflow") for job in act.jobs):
            if self._loaded and len(self._fresh) == 1 and self._runner.evict is not None:
                self._runner.evict(self._run_id)
        elif act.is_replaying:
            self._loaded = True
        elif not any(job.HasField("remove_from_cache") for job in act.jobs):
            self._fresh.add(act.history_length)
        for job in act.jobs:
            if job.HasField("remove_from_cache"):
                self._runner.left(self._run_id, job.remove_from_cache.reason in RECORDED)
        return self._run.activate(act)

    # Asked for every payload, and each answer of a sandboxed run costs as much as running it: our converter and
    # our store look at no context, so two fifths of a replay's CPU are saved by not asking.

    def get_serialization_context(self, command_info: Any) -> SerializationContext | None:
        """None."""
        return None

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:
        """An empty one."""
        return _NO_CONTEXT

    def get_info(self) -> Info:
        """See base class."""
        return self._run.get_info()

    def get_thread_id(self) -> int | None:
        """See base class."""
        return self._run.get_thread_id()
