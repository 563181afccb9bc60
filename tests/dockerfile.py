"""A Dockerfile carried out without a container engine: its own lines, in a folder that stands for the file system."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOTED = re.compile(r"(?<![\w.$}/])/(?=(?:venv|src|dist|data|agents)\b)")
"""Paths of the image inside a command, which lie below the folder here."""


@dataclass(frozen=True)
class Instruction:
    """One instruction; `stage` counts from 0, -1 is before the first FROM."""

    name: str
    text: str
    stage: int


def parse(path: Path) -> list[Instruction]:
    """The instructions of a file, continued lines joined, comments left out."""
    lines = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    found: list[Instruction] = []
    stage = -1
    for line in lines.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, _, text = line.strip().partition(" ")
        stage += name == "FROM"
        found.append(Instruction(name, " ".join(text.split()), stage))
    return found


def sent(context: Path, ignore: Path) -> set[str]:
    """The names at the top of the context that an ignore file of the form `*`, `!name` lets through."""
    rules = [line for line in ignore.read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    return {rule[1:] for rule in rules if rule.startswith("!") and (context / rule[1:]).exists()}


def never_sent(ignore: Path) -> list[str]:
    """The patterns that hold at every depth."""
    return [line.removeprefix("**/") for line in ignore.read_text().splitlines() if line.startswith("**/")]


@dataclass
class Image:
    """What building has made: the folder, the variables and the working folder of the last stage."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    folder: Path = Path()
    ran: list[Instruction] = field(default_factory=list)

    def here(self, text: str) -> str:
        """A command or path of the image as it is here."""
        return ROOTED.sub(f"{self.root}/", text)

    def process(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        """Start a command as a container of the image would, with nothing of this process's own settings."""
        ours = re.compile(r"PYTHON|PERDURE_|TEMPORAL_|VIRTUAL_ENV|[A-Z]+_API_KEY|[A-Z]+_BASE_URL")
        kept = {name: value for name, value in os.environ.items() if not ours.match(name)}
        variables = {**kept, **self.environment, **environment}
        program = shutil.which(command[0], path=variables["PATH"])
        assert program, f"{command[0]} is not on {variables['PATH']}"
        return subprocess.Popen(
            [program, *(self.here(part) for part in command[1:])],
            cwd=self.folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def build(path: Path, context: Path, root: Path) -> Image:
    """Carry out COPY and RUN of every stage; raises AssertionError with the output of a RUN that fails."""
    image = Image(root)
    ignore = path.with_name(".dockerignore")
    allowed, hidden = sent(context, ignore), never_sent(ignore)
    for step in parse(path):
        match step.name:
            case "FROM":
                image.environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
                image.folder = root
            case "ENV":
                for pair in shlex.split(step.text):
                    name, _, value = pair.partition("=")
                    value = value.replace("$PATH", image.environment["PATH"])
                    image.environment[name] = value if name != "PATH" else image.here(value)
                    if value.startswith("/"):
                        image.environment[name] = image.here(value)
            case "WORKDIR":
                image.folder = Path(image.here(step.text))
                image.folder.mkdir(parents=True, exist_ok=True)
            case "COPY":
                _copy(step, image, context, allowed, hidden)
            case "RUN":
                done = subprocess.run(
                    ["/bin/sh", "-c", image.here(step.text)],
                    cwd=image.folder,
                    env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | image.environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"RUN {step.text}\n{done.stdout}\n{done.stderr}"
                image.ran.append(step)
    return image


def _copy(step: Instruction, image: Image, context: Path, allowed: set[str], hidden: list[str]) -> None:
    """Files of the context, or a path of an earlier stage, which all lie below one folder here."""
    options = [word for word in step.text.split() if word.startswith("--")]
    *sources, target = [word for word in step.text.split() if not word.startswith("--")]
    if any(option.startswith("--from=") for option in options):
        assert sources == [target], "a path that moves between stages is not carried out here"
        assert Path(image.here(target)).exists(), step
        return
    for source in sources:
        assert source in allowed, f".dockerignore keeps {source} out"
        goal = image.folder / (source if target == "./" else target)
        if (context / source).is_dir():
            shutil.copytree(context / source, goal, ignore=lambda _, names: _matching(names, hidden))
        else:
            shutil.copy(context / source, goal)


def _matching(names: list[str], patterns: list[str]) -> set[str]:
    return {name for name in names for pattern in patterns if fnmatch.fnmatch(name, pattern)}
