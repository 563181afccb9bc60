"""The rules that keep the repository readable and its layers apart, and proof that the linters enforce them."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout import PACKAGES, ROOT, files, settings

SCRIPTS = Path(sys.executable).parent
LONGEST, LONGEST_TEST = 400, 500
WORKER_LONGEST = 130
# In pieces, so that this file does not find itself.
WORDS = re.compile(r"\bTO" r"DO\b|\bFIX" r"ME\b|\bXX" r"X\b|\bHA" r"CK\b|\bfor " r"now\b")
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
HOSTS = re.compile(r"pypi" r"\.org|python" r"hosted|--(extra-)?index" r"-url|--find" r"-links|--trusted" r"-host")
MACHINE_PATHS = re.compile(r"(?<![\w.$}])(/(home|Users|tmp)/\w|/(root|work|opt|mnt)/|[A-Z]:\\Users)")
TEXTS = (".py", ".md", ".toml", ".lock", ".yml", ".yaml", ".json", ".sh", "")
IMPORT_NAMES = {
    "docstring-parser": "docstring_parser",
    "genai-prices": "genai_prices",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "protobuf": "google",
    "pydantic-core": "pydantic_core",
    "pyjwt": "jwt",
    "typing-extensions": "typing_extensions",
}
"""Distributions whose import name is another."""


def python_files() -> list[Path]:
    """All Python files of the repository."""
    return files(".py")


def code() -> list[Path]:
    """The Python files that are shipped."""
    return [ROOT / "worker.py", *(p for package in PACKAGES for p in files(".py", below=ROOT / package))]


def name_of(path: Path) -> str:
    """Path as tests show it."""
    return str(path.relative_to(ROOT))


def test_modules_are_short() -> None:
    """No module has more than 400 lines, one idea each; a test module's tables may take 500."""
    tests = ROOT / "tests"
    lines = {p: len(p.read_text().splitlines()) for p in python_files()}
    long = {name_of(p): n for p, n in lines.items() if n > (LONGEST_TEST if tests in p.parents else LONGEST)}
    assert long == {}


def test_modules_are_named_by_what_they_are() -> None:
    """No module is named after being a place to put things."""
    assert [name_of(p) for p in python_files() if p.stem in FORBIDDEN_NAMES or p.parent.name in FORBIDDEN_NAMES] == []


def test_nothing_is_left_to_do() -> None:
    """Code and documents carry no notes of unfinished work."""
    found = [
        f"{name_of(p)}:{number}"
        for p in files(".py", ".md", ".toml", ".yaml", ".yml", "")
        for number, line in enumerate(p.read_text(errors="replace").splitlines(), 1)
        if WORDS.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(("what", "pattern"), [("index address", HOSTS), ("path of a machine", MACHINE_PATHS)])
def test_files_name_no_machine(what: str, pattern: re.Pattern[str]) -> None:
    """No file names a package index, its options, or a folder of the machine it was written on."""
    found = [
        f"{name_of(p)}:{number}: {line.strip()[:80]}"
        for p in files(*TEXTS)
        if p != Path(__file__).resolve()
        for number, line in enumerate(p.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line) and not line.startswith("#!")
    ]
    assert found == [], what


def test_locks_hold_hashes_only() -> None:
    """Every line of the lock files is a pinned release, a hash of it, or a remark on who wants it."""
    line_of_lock = re.compile(r"[A-Za-z0-9._-]+==\S+( ; .+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?|\s*#.*|")
    wrong = [
        f"{name}:{number}: {line[:80]}"
        for name in ("requirements.lock", "requirements-dev.lock")
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if not line_of_lock.fullmatch(line)
    ]
    assert wrong == []


def test_locks_agree() -> None:
    """What both lock files pin has the same version in both, and every dependency is pinned."""
    pins = {
        name: dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements.lock", "requirements-dev.lock")
    }
    runtime, everything = pins["requirements.lock"], pins["requirements-dev.lock"]
    assert {n: v for n, v in runtime.items() if everything.get(n) != v} == {}
    assert declared() - set(runtime) == set()
    assert declared("dev") - set(everything) == set()


def test_every_test_says_what_it_shows() -> None:
    """Each test function has a docstring, so that a failure reads as a broken promise."""
    silent = [
        f"{name_of(p)}: {node.name}"
        for p in files(".py", below=ROOT / "tests")
        for node in ast.walk(ast.parse(p.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and ast.get_docstring(node) is None
    ]
    assert silent == []


def test_tests_replace_nothing() -> None:
    """Tests use the real thing on loopback or a scripted one that is shipped; they patch nothing and mock nothing."""
    patched = re.compile(r"unittest\.mock|from unittest import mock|\bMagicMock\b|\bmocker\b|monkeypatch\.setattr")
    here = Path(__file__).resolve()
    assert [name_of(p) for p in files(".py", below=ROOT / "tests") if p != here and patched.search(p.read_text())] == []


def test_worker_only_wires() -> None:
    """worker.py is short, and defines functions that compose: no classes, and no loop but the one over signals."""
    source = (ROOT / "worker.py").read_text()
    assert len(source.splitlines()) <= WORKER_LONGEST
    tree = ast.parse(source)
    assert [n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)] == []
    assert sum(isinstance(n, ast.For | ast.AsyncFor | ast.While) for n in ast.walk(tree)) <= 1


def test_imports_are_declared() -> None:
    """Every third-party package that shipped code imports is a declared dependency, and none is declared in vain."""
    own = {*PACKAGES, "worker"}
    used = {name for p in code() for name in imported(p)} - sys.stdlib_module_names - own
    there = declared() | declared("s3") | declared("otel")
    assert used == {IMPORT_NAMES.get(name, name) for name in there}


def declared(extra: str | None = None) -> set[str]:
    """Names of the declared dependencies, of an extra or of the project itself."""
    project = settings()["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return {re.split(r"[<>=!~\[; ]", line, maxsplit=1)[0] for line in lines}


def imported(path: Path) -> Iterator[str]:
    """Top-level names that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_outward_modules_are_the_same_everywhere() -> None:
    """The named exceptions to purity are one list, though three tools need it."""
    contracts = {c["id"]: c for c in settings()["tool"]["importlinter"]["contracts"]}
    outward = set(contracts["outward"]["protected_modules"])
    assert set(contracts["outward"]["allowed_importers"]) == outward
    excused = {edge.split(" -> ")[0].removesuffix(".**") for edge in contracts["pure"]["ignore_imports"]}
    assert excused == outward
    allowed = next(k for k in settings()["tool"]["ruff"]["lint"]["per-file-ignores"] if k.startswith("perdure/{"))
    named = {f"perdure.{m}" for m in re.findall(r"\w+", allowed.removeprefix("perdure/").removesuffix(".py"))}
    assert named | {"perdure.cli"} == outward


VIOLATIONS = [
    ("perdure/limits.py", "import temporalio.client", "perdure is pure"),
    ("perdure/strategies/tool_loop.py", "import random", "perdure is pure"),
    ("perdure/agent.py", "import os", "perdure is pure"),
    ("perdure/limits.py", "import activities.prices", "activities and workflows are strangers"),
    ("perdure/tools.py", "import perdure.client", "only outward modules"),
    ("workflows/state.py", "import activities.prices", "workflows are deterministic"),
    ("workflows/views.py", "import providers.base", "workflows are deterministic"),
    ("workflows/calls.py", "import time", "workflows are deterministic"),
    ("workflows/calls.py", "import os", "workflows are deterministic"),
    ("activities/model.py", "import workflows.state", "activities and workflows are strangers"),
    ("activities/model.py", "import httpx2", "only importer of the HTTP client"),
    ("providers/sse.py", "import temporalio.activity", "providers only translate"),
    ("providers/chat/reply.py", "import httpx2", "providers only translate"),
    ("providers/text.py", "import activities.http", "activities and workflows are strangers"),
    ("providers/scripted.py", "import providers.chat.calls", "vendors are strangers"),
    ("providers/text.py", "import providers.scripted", "vendors are strangers"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the shipped code to plant violations in."""
    folder = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "worker.py"):
        shutil.copy(ROOT / name, folder)
    return folder


def lint(tool: str, *arguments: str, cwd: Path) -> tuple[int, str]:
    """Exit code and output of a linter of this environment."""
    done = subprocess.run([SCRIPTS / tool, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_layers_hold(copy: Path) -> None:
    """All import contracts are kept."""
    code, output = lint("lint-imports", "--no-cache", cwd=copy)
    assert code == 0, output


@pytest.mark.parametrize(("file", "line", "contract"), VIOLATIONS)
def test_layers_bite(copy: Path, file: str, line: str, contract: str) -> None:
    """A forbidden import breaks the contract that is about it."""
    target = copy / file
    before = target.read_text()
    target.write_text(f"{before}\n{line}\n")
    try:
        code, output = lint("lint-imports", "--no-cache", cwd=copy)
    finally:
        target.write_text(before)
    broken = [text for text in output.splitlines() if " BROKEN" in text]
    assert code == 1
    assert any(contract in text for text in broken), output


IMPURE = [
    ("import datetime\ndatetime.datetime.now()", 1),
    ("from datetime import datetime\ndatetime.utcnow()", 1),
    ("import time\ntime.time()", 1),
    ("import uuid\nuuid.uuid4()", 1),
    ("from uuid import uuid4\nuuid4()", 1),
    ("import random\nrandom.random()", 1),
    ("import os\nos.environ['HOME']", 1),
    ("import os\nos.getenv('HOME')", 1),
    ("from datetime import timedelta\ntimedelta(1)", 0),
]


@pytest.mark.parametrize("package", ["perdure", "workflows", "providers"])
@pytest.mark.parametrize(("source", "code"), IMPURE)
def test_impurity_is_linted(copy: Path, package: str, source: str, code: int) -> None:
    """Clock, chance and environment are refused in pure and deterministic code, where the sandbox no longer looks."""
    planted = copy / package / "planted.py"
    planted.write_text(f"{source}\n")
    try:
        found, output = lint("ruff", "check", "--no-cache", "--select", "TID251", name_of_copy(planted, copy), cwd=copy)
    finally:
        planted.unlink()
    assert found == code, output


def name_of_copy(path: Path, copy: Path) -> str:
    """Path inside the copy, as ruff's per-file rules want it."""
    return str(path.relative_to(copy))
