"""Worker versioning: a run stays on workers of the build on which it began."""

from __future__ import annotations

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig


def pinned(version: str | None) -> WorkerDeploymentConfig | None:
    """Temporal's settings for a worker of the version `deployment.build`, or none for a worker without one."""
    if version is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion.from_canonical_string(version),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )
