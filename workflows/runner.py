"""The sandbox that workers, tests and replays share, and what passes through it."""

from __future__ import annotations

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from workflows.agent import AgentWorkflow
from workflows.queried import QuerySafeRunner
from workflows.unknown import UnknownWorkflow

WORKFLOWS = [AgentWorkflow, UnknownWorkflow]
"""Every workflow of a worker."""

PASSED_THROUGH = (
    "perdure",
    "workflows",
    "jsonschema",
    "jsonschema_specifications",
    "referencing",
    "rpds",
    "attr",
    "attrs",
    "docstring_parser",
    "typing_extensions",
    "jwt",
    "cryptography",  # loaded a second time its native part aborts the whole process
)
"""Pure modules: loaded once instead of for every run (5 ms of CPU and most of a cached run's memory otherwise).

Passing through removes the sandbox's guard from a module, so the purity of all of these is linted.
"""


def make_runner() -> QuerySafeRunner:
    """The workflow runner of workers and replayers; a worker gives it `evict`."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    return QuerySafeRunner(SandboxedWorkflowRunner(restrictions=restrictions))
