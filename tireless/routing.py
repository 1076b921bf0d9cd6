"""Which kind of job an issue's labels ask for, and which lane it queues in; pure.

`lane_for` is the one place that decides a lane. It runs at enqueue and whenever the poller sees other labels
on a live job's issue; nothing derives a lane at claim time, which would cost a forge request a claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tireless.entities import AgentKind, JobKind
from tireless.labels import LabelProtocol, agent_override, is_opted_in, mode_of


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """The lane of each kind when no label overrides it; configurable under [routing]."""

    implement: AgentKind = AgentKind.CLAUDE_CODE
    plan: AgentKind = AgentKind.CLAUDE_CODE
    discover: AgentKind = AgentKind.CLAUDE_CODE
    child: AgentKind | None = None  # a plan's children, where they should go elsewhere than `implement`
    relane_on_hold: bool = False  # jobs that nobody has begun leave a lane that is held for long
    relane_after_seconds: float = 600.0

    def default_for(self, kind: JobKind, has_parent: bool) -> AgentKind:
        if has_parent and kind is JobKind.IMPLEMENT and self.child is not None:
            return self.child
        return {
            JobKind.IMPLEMENT: self.implement,
            JobKind.PLAN: self.plan,
            JobKind.DISCOVER: self.discover,
        }[kind]


def job_kind_for(labels: Iterable[str], protocol: LabelProtocol) -> JobKind | None:
    """The job that the labels ask for; None without the opt-in label. Opted in with no mode is implement."""
    labels = tuple(labels)
    if not is_opted_in(labels, protocol):
        return None
    return mode_of(labels, protocol) or JobKind.IMPLEMENT


def lane_for(
    kind: JobKind, has_parent: bool, labels: Iterable[str], protocol: LabelProtocol, table: RoutingTable
) -> AgentKind:
    return agent_override(labels, protocol) or table.default_for(kind, has_parent)
