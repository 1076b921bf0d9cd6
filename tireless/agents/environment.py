"""The agent's environment, built from nothing, and the place of its program.

Tools inherit what the agent has (AGENT_CLIS.md, rule 8), so nothing of tireless's own environment goes in: a
forge token or a stray key there would reach every command that the model runs. What goes in is listed here,
the CLI's switches, and what the lane's configuration names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tireless.agents.base import AgentMissing, Places, Task
from tireless.config import LaneConfig, agent_environment
from tireless.entities import AgentKind
from tireless.proctree import MARK

REPORT_VARIABLE = "TIRELESS_REPORT"
PROGRAMS = {AgentKind.CLAUDE_CODE: "claude", AgentKind.OPENCODE: "opencode"}  # of a lane that names no command
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Program:
    """A command with its first word found. `files`: what it needs to read, interpreter included; `directories`:
    what PATH needs to name so that the CLI finds itself and its interpreter."""

    argv: tuple[str, ...]
    files: tuple[Path, ...]
    directories: tuple[str, ...]


def lane_environment(lane: LaneConfig) -> dict[str, str]:
    return agent_environment(lane)


def search_path(own: Mapping[str, str]) -> str:
    """Where commands are looked for: the lane's PATH, tireless's own, the system's."""
    return os.pathsep.join(p for p in (own.get("PATH"), os.environ.get("PATH"), SYSTEM_PATH) if p)


def lane_program(lane: LaneConfig, kind: AgentKind) -> Program:
    """The lane's CLI. AgentMissing if it is not there."""
    return find_program(lane.command or (PROGRAMS[kind],), lane_environment(lane), kind)


def find_program(command: Sequence[str], own: Mapping[str, str], kind: AgentKind) -> Program:
    """Look the command up: a path as it is, a name on the lane's PATH, on tireless's, on the system's. AgentMissing
    says where that was, and what to do; also where the interpreter of a script is what is missing (a CLI of npm's
    without node)."""
    search = search_path(own)
    found = shutil.which(command[0], path=search)
    if found is None:
        raise AgentMissing(f"{_not_found(command[0], search)}; install it, or set lane.{kind}.command")
    first = Path(os.path.abspath(found))
    try:
        files = [first, *_interpreters(first, search)]
    except AgentMissing as e:
        raise AgentMissing(f"{e}; install it, or set lane.{kind}.command") from None
    for script in (Path(word) for word in command[1:] if word.startswith("/") and os.path.isfile(word)):
        files.append(script)
        with contextlib.suppress(AgentMissing):  # which it may not need, given to a program
            files.extend(_interpreters(script, search))
    directories = dict.fromkeys(str(file.parent) for file in files)
    return Program((str(first), *command[1:]), tuple(dict.fromkeys(files)), tuple(directories))


def _not_found(name: str, search: str) -> str:
    looked = ":".join(dict.fromkeys(search.split(os.pathsep)))
    return f"{name} is not an executable file" if "/" in name else f"{name} is not on PATH ({looked})"


def _interpreters(script: Path, search: str) -> list[Path]:
    """The program that a script's first line names, and that program's own, if it is a script too. AgentMissing if
    one is not there; what is no plain name (options and variables of env) is not judged."""
    found: list[Path] = []
    while len(found) < 4 and (named := _named_by(script)) is not None:
        name, plain = named
        at = shutil.which(name, path=search)
        if at is None:
            if plain:
                raise AgentMissing(f"{script} needs {name}, and {_not_found(name, search)}")
            break
        script = Path(os.path.abspath(at))
        found.append(script)
    return found


def _named_by(script: Path) -> tuple[str, bool] | None:
    """What the first line of a script names to run it, and whether it says nothing else; None for no script."""
    try:
        with open(script, "rb") as f:
            first_line = f.read(512).partition(b"\n")[0]
    except OSError:
        return None
    words = first_line[2:].decode("utf-8", "replace").split() if first_line.startswith(b"#!") else []
    if not words or os.path.basename(words[0]) != "env":
        return (words[0], True) if words else None
    names = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
    return (names[0], len(words) == 2) if names else None


def base_environment(
    task: Task, places: Places, program: Program, switches: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, str]:
    """What the lane sets wins over a switch; the job's own places and its mark win over both."""
    env = {"LANG": "C.UTF-8", "TERM": "dumb", "USER": "agent", "LOGNAME": "agent", **switches, **own}
    env["PATH"] = _path(program, own.get("PATH", SYSTEM_PATH))
    env["HOME"] = str(places.home)
    env["PWD"] = str(places.workspace)
    env["TMPDIR"] = str(places.tmp)
    env["GIT_TERMINAL_PROMPT"] = "0"  # a git that asks for a password would wait for ever
    env[MARK] = task.job_id
    env[REPORT_VARIABLE] = str(places.report_dir)
    return env


def _path(program: Program, rest: str) -> str:
    """The system's directories keep their order; the CLI's own come after the lane's PATH is settled."""
    known = rest.split(os.pathsep)
    return os.pathsep.join([*(d for d in program.directories if d not in known), *known])
