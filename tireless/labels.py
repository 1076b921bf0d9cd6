"""The label protocol: people's intent in labels. Labels in, intent out; pure.

`tireless` opts an issue in; without it nothing happens. `tireless/plan`, `tireless/implement` and
`tireless/discover` choose the mode, `tireless/agent:cc` and `tireless/agent:oc` the lane. The labels under
`tireless/state/` are written for people to see and are never read back to decide anything.

Forges compare label names without regard to case (GitHub refuses two that differ only in it), so we do too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from tireless.entities import AgentKind, JobKind


@dataclass(frozen=True, slots=True)
class LabelProtocol:
    """The names of the labels; all configurable under [labels]."""

    opt_in: str = "tireless"
    plan: str = "tireless/plan"
    implement: str = "tireless/implement"
    discover: str = "tireless/discover"
    agent_claude_code: str = "tireless/agent:cc"
    agent_opencode: str = "tireless/agent:oc"
    state_prefix: str = "tireless/state/"

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for f in fields(self):
            name = getattr(self, f.name).strip().casefold()
            if not name:
                raise ValueError(f"labels.{f.name} is empty; give it a name or leave the key out")
            if name in seen:
                raise ValueError(f"labels.{f.name} and labels.{seen[name]} are both {name!r}")
            seen[name] = f.name
        prefix = self.state_prefix.casefold()
        for name, key in seen.items():
            if key != "state_prefix" and name.startswith(prefix):
                raise ValueError(
                    f"labels.{key} is {name!r}, under labels.state_prefix {self.state_prefix!r}: "
                    "state labels are tireless's own and never intent"
                )

    def state_label(self, state: str) -> str:
        return f"{self.state_prefix}{state}"


def _set(labels: Iterable[str]) -> frozenset[str]:
    return frozenset(label.strip().casefold() for label in labels)


def is_opted_in(labels: Iterable[str], protocol: LabelProtocol) -> bool:
    return protocol.opt_in.casefold() in _set(labels)


def mode_of(labels: Iterable[str], protocol: LabelProtocol) -> JobKind | None:
    """The mode that the labels ask for, opted in or not; None if they name none.

    Plan beats implement beats discover: planning produces the implementation children, so it loses nothing,
    while the reverse would silently drop the decomposition that was asked for as well.
    """
    present = _set(labels)
    for name, kind in (
        (protocol.plan, JobKind.PLAN),
        (protocol.implement, JobKind.IMPLEMENT),
        (protocol.discover, JobKind.DISCOVER),
    ):
        if name.casefold() in present:
            return kind
    return None


def agent_override(labels: Iterable[str], protocol: LabelProtocol) -> AgentKind | None:
    """The lane that the labels ask for. With both set neither wins: the routing table decides."""
    present = _set(labels)
    asked = {
        kind
        for name, kind in (
            (protocol.agent_claude_code, AgentKind.CLAUDE_CODE),
            (protocol.agent_opencode, AgentKind.OPENCODE),
        )
        if name.casefold() in present
    }
    return asked.pop() if len(asked) == 1 else None


def is_state_label(label: str, protocol: LabelProtocol) -> bool:
    return label.strip().casefold().startswith(protocol.state_prefix.casefold())
