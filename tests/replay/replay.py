"""Replay histories in this process: `python -m tests.replay.replay [--reordered] FILE...` prints problems as JSON.

`--reordered` replays against a workflow that does something else first, so every history must be found out.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from activities.converter import data_converter
from perdure.contracts import AGENT_WORKFLOW
from perdure.plain import Plain
from workflows.agent import AgentWorkflow
from workflows.interceptor import RunInterceptor
from workflows.runner import WORKFLOWS, make_runner

SECONDS = 20.0
"""For one history; a replay that is stuck is an error."""


@workflow.defn(name=AGENT_WORKFLOW)
class Reordered(AgentWorkflow):
    """The workflow with another first command."""

    @workflow.run
    async def run(self, payload: Any = None, inner: Any = None) -> Plain:
        """Wait before anything else."""
        await workflow.sleep(1)
        return await super().run(payload, inner)


async def main(files: Sequence[str], workflows: Sequence[type]) -> dict[str, str | None]:
    """What went wrong by file name, None where the history replays."""
    replayer = Replayer(
        workflows=workflows,
        workflow_runner=make_runner(),
        data_converter=data_converter(None),
        interceptors=[RunInterceptor()],
    )
    found: dict[str, str | None] = {}
    for file in map(Path, files):
        workflow_id = re.sub(r"_[0-9]+$", "", file.stem)  # ids of children derive from it, and histories do not hold it
        history = WorkflowHistory.from_json(workflow_id, file.read_text())
        try:
            await asyncio.wait_for(replayer.replay_workflow(history), SECONDS)
            found[file.name] = None
        except Exception as error:
            found[file.name] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    reordered = sys.argv[1:2] == ["--reordered"]
    classes = [Reordered if reordered and one is AgentWorkflow else one for one in WORKFLOWS]
    print(json.dumps(asyncio.run(main(sys.argv[1 + reordered :], classes))))
    sys.stdout.flush()
    os._exit(0)  # a process that ran a Worker may abort while the interpreter shuts down
