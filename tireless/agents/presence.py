"""Is a lane's CLI there, for the agents of this host? Looked for as a start would find it, at the cost of a few stats.

Known before anything is claimed, a missing program is the matter of the one host that lacks it: its runners take no
job that needs the agent, the lane stays open for the others, and no issue is told that work begins.
"""

from __future__ import annotations

from tireless.agents.base import AgentMissing
from tireless.agents.environment import lane_program
from tireless.agents.sandbox import Sandbox
from tireless.config import LaneConfig
from tireless.entities import AgentKind


def demand(lane: LaneConfig, kind: AgentKind, sandbox: Sandbox) -> None:
    """AgentMissing if it is not there, or agents may not run it: the program, where it was looked for, the way out."""
    program = lane_program(lane, kind)
    obstacle = sandbox.obstacle(program.files)
    if obstacle is not None:
        raise AgentMissing(f"{obstacle}; install it elsewhere, or set lane.{kind}.command")


def why_absent(lane: LaneConfig, kind: AgentKind, sandbox: Sandbox) -> str | None:
    """What `demand` has to say; None if all is well."""
    try:
        demand(lane, kind, sandbox)
    except AgentMissing as e:
        return str(e)
    return None
