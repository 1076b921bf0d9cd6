"""The agent's environment, built from nothing, and the place of its program.

Tools inherit what the agent has (AGENT_CLIS.md, rule 8), so nothing of tireless's own environment goes in: a
forge token or a stray key there would reach every command that the model runs. What goes in is listed here,
the CLI's switches, and what the lane's configuration names.
"""

from __future__ import annotations

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
    says where that was, and what to do."""
    search = search_path(own)
    found = shutil.which(command[0], path=search)
    if found is None:
        looked = ":".join(dict.fromkeys(search.split(os.pathsep)))
        where = "is not an executable file" if "/" in command[0] else f"is not on PATH ({looked})"
        raise AgentMissing(f"{command[0]} {where}; install it, or set lane.{kind}.command")
    first = Path(os.path.abspath(found))
    files = [first, *(Path(word) for word in command[1:] if word.startswith("/") and os.path.isfile(word))]
    for script in list(files):
        files.extend(_interpreter(script, search))
    directories = dict.fromkeys(str(file.parent) for file in files)
    return Program((str(first), *command[1:]), tuple(dict.fromkeys(files)), tuple(directories))


def _interpreter(script: Path, search: str, depth: int = 0) -> list[Path]:
    """The program that a script's first line names, and that program's own, if it is a script too."""
    try:
        with open(script, "rb") as f:
            first_line = f.read(512).partition(b"\n")[0]
    except OSError:
        return []
    if not first_line.startswith(b"#!") or depth > 3:
        return []
    words = first_line[2:].decode("utf-8", "replace").split()
    if words and os.path.basename(words[0]) == "env":
        words = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
    found = shutil.which(words[0], path=search) if words else None
    if found is None:
        return []
    path = Path(os.path.abspath(found))
    return [path, *_interpreter(path, search, depth + 1)]


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
