"""A process that does what a runner does with one agent run, to be killed or stopped by a test.

    python -m tests.support.agent.tiny_runner ROOT JOB_ID SCRIPT [bwrap]

It starts the scripted agent with SCRIPT (JSON) in ROOT, writes ROOT/started when the agent has printed its first
event, and follows the run to its end; then ROOT/concluded holds the outcome.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.agent.runs import NO_SANDBOX, Job, bubblewrap, scripted_lane
from tireless.agents.base import Limits


def main(root: Path, job_id: str, script: str, mode: str = "none") -> int:
    sandbox = bubblewrap() if mode == "bwrap" else NO_SANDBOX
    assert sandbox is not None
    limits = Limits(stall_seconds=100, wall_seconds=100, grace_seconds=1, linger_seconds=100)
    job = Job(root, sandbox=sandbox, limits=limits, id=job_id)
    with job.start(scripted_lane(**json.loads(script))) as agent:
        while not agent.ended:
            if agent.turn(0.1):
                (root / "started").write_text(str(agent.guard_pid))
        (root / "concluded").write_text(agent.conclude().outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
