"""What users install: the wheel in an empty environment, and an editable checkout, beside a stranger's `workflows`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.checkout import PACKAGES, ROOT
from tests.examples.test_own_provider import talking

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STRANGER = "raise RuntimeError('this is another distribution')\n"
"""What a folder of one of our names holds that somebody else installed."""

PLAIN_SCRIPT = """
from perdure import Agent, tool
from perdure.testing import calls, reply, scripted

@tool(effect="read")
def get_weather(city: str) -> str:
    '''Weather now.'''
    return f"{city}: 9C"

agent = Agent("weather", scripted(calls("get_weather", city="Oslo"), reply("{{last_tool_text}}")), tools=[get_weather])
print(agent.run_sync("How is Oslo?").output)
"""

README_SCRIPT = """
import time

import perdure
from my_agents import clerk

with perdure.local() as p:
    run = p.start(clerk, "Pay invoice 42", id="inv-42")
    while not (waiting := run.approvals()):
        time.sleep(0.05)
    assert waiting[0].arguments == {"to": "bob", "amount_cents": 1999}, waiting
    run.approve(by="ann")
    print(run.result().output)
"""

PROVIDER_SCRIPT = """
import os

os.environ["TALK_URL"] = "{url}"
from own_provider import keeper

print(keeper.run_sync("How many bolts?").output)
"""


class Environment:
    """A virtual environment, used from an empty folder and with nothing of ours in its variables."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "venv", with_pip=True)
        self.folder = folder / "empty"
        self.folder.mkdir()
        self.bin = folder / "venv" / "bin"
        self.site_packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
        ours = re.compile(r"PYTHON|PERDURE_|TEMPORAL_|OPENAI_|COMPATIBLE_")
        self._variables = {name: value for name, value in os.environ.items() if not ours.match(name)}

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment by its name."""
        return subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=self.folder,
            env={**self._variables, "PERDURE_DATA_DIR": str(self.folder / "data")},
            capture_output=True,
            text=True,
            check=False,
        )

    def install(self, *arguments: str | Path) -> None:
        """`pip install`, quietly."""
        done = self.run("python", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q", *arguments)
        assert done.returncode == 0, done.stderr

    def script(self, source: str) -> str:
        """What a script prints."""
        path = self.folder / "script.py"
        path.write_text(source)
        done = self.run("python", path)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the locked releases, and strangers under every name that a checkout has at its top."""
    environment = Environment(tmp_path_factory.mktemp("environment"))
    environment.install("--require-hashes", "-r", ROOT / "requirements.lock")
    for name in ("workflows", "activities", "providers", "worker"):
        (environment.site_packages / name).mkdir()
        (environment.site_packages / name / "__init__.py").write_text(STRANGER)
    return environment


@pytest.fixture(scope="module")
def installed(bare: Environment, wheel: Path) -> Environment:
    """The wheel in the environment."""
    bare.install("--no-deps", wheel)
    return bare


def test_wheel_brings_one_name(wheel: Path) -> None:
    """Only `perdure` reaches site-packages; the rest of the checkout is carried inside it, tests and bench are not."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"perdure", f"perdure-{wheel.name.split('-')[1]}.dist-info"}
    carried = {name.split("/")[2] for name in names if name.startswith("perdure/_app/")}
    assert carried == {*PACKAGES, "worker.py"} - {"perdure"}
    assert "perdure/py.typed" in names


def test_installed_release_is_sound(installed: Environment) -> None:
    """Nothing that the wheel asks for is missing from the lock file."""
    done = installed.run("python", "-m", "pip", "check")
    assert done.returncode == 0, done.stdout


def test_command_line(installed: Environment) -> None:
    """The console script shows its help, and so does the module."""
    for command in (["perdure", "--help"], ["python", "-m", "perdure", "--help"]):
        done = installed.run(*command)
        assert (done.returncode, "approve" in done.stdout) == (0, True), done.stderr


def test_worker_says_what_is_wrong(installed: Environment) -> None:
    """`perdure worker` finds the runtime that the wheel carries, and refuses a missing file in one line."""
    done = installed.run("perdure", "worker", "nothing.py")
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1), done.stderr
    assert "nothing.py" in done.stderr


def test_plain_script(installed: Environment) -> None:
    """An agent runs in a plain script, with its server and worker, though strangers have our names."""
    assert installed.script(PLAIN_SCRIPT) == "Oslo: 9C"


def test_example_of_the_readme(installed: Environment) -> None:
    """The README's agents file does what the README says, approval included."""
    source = re.findall(r"^```python\n(# my_agents\.py\n.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (installed.folder / "my_agents.py").write_text(source[0])
    assert installed.script(README_SCRIPT) == "Done: paid 1999 cents to bob"


def test_example_of_an_own_provider(installed: Environment) -> None:
    """A provider of an author's own answers in a plain script, with nothing but what the wheel brings."""
    shutil.copy(ROOT / "examples" / "own_provider.py", installed.folder)
    with talking() as talk:
        assert installed.script(PROVIDER_SCRIPT.format(url=talk.url)) == "There are 120 bolts."
    assert len(talk.bodies) == 2


def test_editable_checkout(bare: Environment, tmp_path: Path) -> None:
    """An editable checkout runs the same script; it replaces the installed wheel, so this comes last."""
    checkout = tmp_path / "checkout"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "worker.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    bare.install("--no-deps", "--no-build-isolation", "-e", checkout)
    assert bare.script("import perdure; print(perdure.__file__)") == str(checkout / "perdure" / "__init__.py")
    assert bare.script(PLAIN_SCRIPT) == "Oslo: 9C"
    assert bare.run("perdure", "--help").returncode == 0
