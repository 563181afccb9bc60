"""Activities called by their typed reference."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from temporalio import workflow

from perdure.contracts import ActivityRef
from workflows.options import LocalOptions, Options

In = TypeVar("In")
Out = TypeVar("Out")


async def execute(
    ref: ActivityRef[In, Out],
    argument: In,
    options: Options,
    summary: str,
    *,
    activity_id: str | None = None,
    queue: str | None = None,
) -> Out:
    """Run an activity and return what it recorded."""
    result: Any = await workflow.execute_activity(
        ref.name,
        argument,
        result_type=cast(type[Any], ref.output),
        activity_id=activity_id,
        task_queue=queue,
        summary=summary,
        **options,
    )
    return cast(Out, result)


async def execute_locally(ref: ActivityRef[In, Out], argument: In, options: LocalOptions, summary: str) -> Out:
    """Run an activity inside this worker: one event instead of three, for what is quick and may be repeated."""
    result: Any = await workflow.execute_local_activity(
        ref.name, argument, result_type=cast(type[Any], ref.output), summary=summary, **options
    )
    return cast(Out, result)
