"""Agent runs for tests: directories, a lane with the scripted agent, a run followed to its end."""

from __future__ import annotations

import json
import shutil
import sys
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tireless import proctree
from tireless.agents import adapter_for
from tireless.agents.base import Adapter, Conclusion, Event, Limits, Places, Task
from tireless.agents.process import AgentProcess
from tireless.agents.sandbox import Sandbox, probe
from tireless.config import LaneConfig, SandboxConfig, SandboxMode
from tireless.entities import AgentKind, JobKind

SCRIPTED = Path(__file__).with_name("scripted.py")
REPOSITORY = Path(__file__).resolve().parents[3]

NO_SANDBOX = Sandbox(SandboxConfig(mode=SandboxMode.NONE))


def bubblewrap(config: SandboxConfig | None = None, hidden: tuple[Path, ...] = ()) -> Sandbox | None:
    """A sandbox of bubblewrap, or None where it does not work on this machine."""
    sandbox = probe(config or SandboxConfig(mode=SandboxMode.AUTO), hidden)
    return sandbox if sandbox.bwrap is not None else None


def scripted_lane(*steps: dict[str, Any], **options: Any) -> LaneConfig:
    script = {**({"steps": list(steps)} if steps else {}), **options}
    return LaneConfig(command=(sys.executable, str(SCRIPTED)), env={"SCRIPTED_AGENT": json.dumps(script)})


def find_cli(name: str) -> Path | None:
    """A real CLI: on PATH, or where bin/test installs them."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    installed = REPOSITORY / ".cache" / "agents" / "node_modules" / ".bin" / name
    return installed if installed.exists() else None


@dataclass
class Job:
    """One job's directories, and the runs in them. Its id is unique, so that its processes can be found."""

    root: Path
    kind: AgentKind = AgentKind.CLAUDE_CODE
    sandbox: Sandbox = NO_SANDBOX
    limits: Limits = field(default_factory=lambda: Limits(stall_seconds=60, wall_seconds=60, grace_seconds=1))
    prompt: str = "Title: A thing to do\n"
    id: str = field(default_factory=lambda: f"job-{uuid.uuid4()}")
    session: str = field(default_factory=lambda: str(uuid.uuid4()))
    mirror: Path | None = None
    runs: int = 0

    @property
    def places(self) -> Places:
        root = self.root
        return Places(root / "workspace", root / "home", root / "report", root / "tmp", self.mirror)

    @property
    def adapter(self) -> Adapter:
        return adapter_for(self.kind)

    @property
    def run_dir(self) -> Path:
        """Of the latest run."""
        return self.root / f"run-{self.runs}"

    def task(self, resume: bool = False) -> Task:
        p = self.places
        return Task(
            self.id, JobKind.IMPLEMENT, self.prompt, p.workspace, p.home, p.report_dir, self.session, resume
        )

    def start(self, lane: LaneConfig, resume: bool = False) -> AgentProcess:
        self.runs += 1
        self.sandbox.prepare(self.places)
        command = self.adapter.command(self.task(resume), lane, self.places)
        return AgentProcess.start(
            command, self.run_dir, self.id, self.sandbox, self.limits, adapter=self.adapter, places=self.places
        )

    def run(self, lane: LaneConfig, resume: bool = False, timeout: float = 60.0) -> Conclusion:
        with self.start(lane, resume) as agent:
            follow(agent, timeout)
            return agent.conclude()

    def alive(self) -> list[int]:
        return proctree.marked(self.id)

    def clean(self) -> None:
        proctree.kill_all(self.alive, 10)

    def with_limits(self, **limits: Any) -> Job:
        self.limits = replace(self.limits, **limits)
        return self


def follow(agent: AgentProcess, timeout: float = 60.0) -> list[Event]:
    """All events until the run has ended; AssertionError if it does not within `timeout` seconds."""
    events: list[Event] = []
    deadline = time.monotonic() + timeout
    while not agent.ended:
        assert time.monotonic() < deadline, f"the agent did not end within {timeout} s"
        events += agent.turn(0.2)
    return events + agent.turn(0)
