"""What a worker takes from its environment, read once and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import PurePath
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator

from perdure.contracts import TASK_QUEUE
from perdure.decision_tokens import check_public_key, public_key_of
from perdure.durations import Duration
from perdure.errors import ConfigError
from perdure.settings import Path, Settings, must, problems_of, validation_error_of

RECORDING_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
RecordingName = Annotated[str, AfterValidator(must(RECORDING_NAME.fullmatch, "be a name such as 'friday'"))]


class WorkerSettings(Settings):
    """Settings of one worker process."""

    task_queue: str = Field(TASK_QUEUE, min_length=1, max_length=200)
    data_dir: PurePath = PurePath(".perdure")
    """Folder of the embedded stores."""
    blob_store: str | None = None
    """`s3://bucket/prefix`: where large values are kept instead of the folder, for workers on several hosts."""
    allowed_urls: frozenset[str] = frozenset()
    """Addresses that agents written as data may use."""
    allowed_keys: frozenset[str] = frozenset()
    """Names of key variables that agents written as data may use."""
    max_activities: int = Field(100, ge=1, le=10_000)
    """Model and tool calls at once."""
    max_cached_runs: int = Field(1_000, ge=0, le=100_000)
    """Runs that are kept in memory; with 0 each is replayed for every task."""
    idle_first: Duration = timedelta(minutes=5)
    """Silence of a model before its first data."""
    idle_between: Duration = timedelta(minutes=1)
    """Silence of a model between data."""
    decision_keys: tuple[Annotated[str, AfterValidator(check_public_key)], ...] = ()
    """Public keys of those who may sign decision tokens."""
    decision_private_key: SecretStr | None = None
    """Signs the decision tokens that notifications carry; its public key is known too."""
    events_file: PurePath | None = None
    """Every event of this worker's runs is appended to it, a line of JSON each."""
    traces_file: PurePath | None = None
    """Every span of this worker's traces is appended to it, a line of JSON each."""
    trace_content: bool = False
    """Whether traces hold prompts, arguments and results too."""
    recording: RecordingName | None = None
    """Every call of a model is added to the recording of this name, which the model `recorded:NAME` plays again."""
    worker_version: str | None = None
    """`deployment.build`: runs stay on workers of the build that they began on; None for workers without a version."""

    @field_validator("worker_version")
    @classmethod
    def _versioned(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[^.\s]+\.\S+", value):
            raise ValueError("must be the names of a deployment and a build with a dot between, such as 'agents.v2'")
        return value

    @property
    def known_keys(self) -> tuple[str, ...]:
        """All public keys that a run of this worker believes."""
        secret = self.decision_private_key
        own = (public_key_of(secret.get_secret_value()),) if secret else ()
        return tuple(dict.fromkeys((*self.decision_keys, *own)))

    @classmethod
    def parse(cls, environment: Mapping[str, str]) -> Self:
        """Settings from `PERDURE_*` variables; raises ConfigError that names the variable."""
        given: dict[str, Any] = {
            field: environment[variable]
            for field in cls.model_fields
            if environment.get(variable := f"PERDURE_{field.upper()}", "") != ""
        }
        for field in ("allowed_urls", "allowed_keys", "decision_keys"):
            if field in given:
                given[field] = tuple(item.strip() for item in given[field].split(","))
        try:
            settings = cls(**given)
        except ConfigError as error:
            wrong = validation_error_of(error)
            raise (ConfigError(problems_of(wrong, _variable)) if wrong else error) from None
        _ = settings.known_keys  # a broken key is found at the start
        return settings


def _variable(path: Path) -> Path:
    """The variable of a field; it holds the whole field, also where a part of it is wrong."""
    return (f"PERDURE_{str(path[0]).upper()}",)
