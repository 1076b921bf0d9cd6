"""What a fake forge knows: plain values, changed only under the forge's lock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.support.forge.git import BareRepo


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Label:
    id: int
    name: str
    colour: str = "ededed"  # without #
    description: str = ""
    exclusive: bool = False

    @property
    def scope(self) -> str | None:
        """`tireless/state` of `tireless/state/queued`: what an exclusive label is alone in."""
        scope, slash, _ = self.name.rpartition("/")
        return scope if slash and self.exclusive else None


@dataclass
class Comment:
    id: int
    author: str
    body: str
    created_at: datetime = field(default_factory=now)
    updated_at: datetime = field(default_factory=now)


@dataclass
class LabelEvent:
    """A label was set on an issue, or taken off."""

    id: int
    actor: str
    label: str
    added: bool
    at: datetime = field(default_factory=now)


@dataclass
class Pull:
    """What makes an issue a pull request."""

    head: str
    base: str
    draft: bool = False
    merged: bool = False
    merge_commit: str | None = None


@dataclass
class Issue:
    id: int
    number: int
    title: str
    body: str
    author: str
    labels: list[Label] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    events: list[LabelEvent] = field(default_factory=list)
    is_open: bool = True
    pull: Pull | None = None
    created_at: datetime = field(default_factory=now)
    updated_at: datetime = field(default_factory=now)

    def has(self, name: str) -> bool:
        return any(label.name.casefold() == name.casefold() for label in self.labels)


@dataclass
class Repo:
    id: int
    owner: str
    name: str
    git: BareRepo
    default_branch: str = "main"
    labels: list[Label] = field(default_factory=list)
    org_labels: list[Label] = field(default_factory=list)  # of the owning organisation (Gitea, Forgejo)
    issues: dict[int, Issue] = field(default_factory=dict)
    permissions: dict[str, str] = field(default_factory=dict)  # login -> admin, write, read
    archived: bool = False
    issues_enabled: bool = True
    drafts: bool = True  # whether its plan has draft pull requests (GitHub)
    created_at: datetime = field(default_factory=now)

    @property
    def full_name(self) -> str:
        return f"{self.owner}/{self.name}"

    def label(self, name: str) -> Label | None:
        return next((label for label in self.labels if label.name.casefold() == name.casefold()), None)

    def next_number(self) -> int:
        return max(self.issues, default=0) + 1
