"""The vocabulary: enums, frozen values and the errors that name them. No I/O.

Every enum here is one vocabulary with a check constraint of the schema (tests/store/test_vocabulary.py
reads the lists out of the live database and compares). A value that a row holds and an enum lacks is an
`UnknownValue`, which names column and value: a migration added it without the matching member.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, time
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar
from uuid import UUID


class Forge(StrEnum):
    GITHUB = "github"
    GITEA = "gitea"
    FORGEJO = "forgejo"


class JobKind(StrEnum):
    IMPLEMENT = "implement"
    PLAN = "plan"
    DISCOVER = "discover"


class AgentKind(StrEnum):
    """An agent CLI, which is also the lane that its jobs queue in."""

    CLAUDE_CODE = "claude_code"
    OPENCODE = "opencode"


class JobState(StrEnum):
    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    DELIVERED = "delivered"
    BLOCKED = "blocked"
    FAILED = "failed"
    ABANDONED = "abandoned"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL_STATES

    @property
    def held(self) -> bool:
        """Whether a job in this state is in somebody's hands: claimed or running, with lease and slot."""
        return self in (JobState.CLAIMED, JobState.RUNNING)


TERMINAL_STATES = frozenset({JobState.DELIVERED, JobState.BLOCKED, JobState.FAILED, JobState.ABANDONED})


class Phase(StrEnum):
    """The first phase of a job that is not complete yet; `done` when all are."""

    PREPARE = "prepare"
    AGENT = "agent"
    VERIFY = "verify"
    PUSH = "push"
    ANNOUNCE = "announce"
    DONE = "done"

    @property
    def needs_agent(self) -> bool:
        """Whether an agent has yet to run, or to be looked after."""
        return self in (Phase.PREPARE, Phase.AGENT)


class Outcome(StrEnum):
    """How one agent run ended, as concluded from its event stream, exit and limits (never from prose)."""

    COMPLETED = "completed"
    BLOCKED = "blocked"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    NOT_AUTHENTICATED = "not_authenticated"
    OUT_OF_CREDIT = "out_of_credit"
    TURN_LIMIT = "turn_limit"
    BUDGET_LIMIT = "budget_limit"
    REFUSED = "refused"  # the CLI will not take this task as given: unknown model, prompt too long, bad option
    CRASHED = "crashed"
    STALLED = "stalled"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"  # we asked it to stop; never judged by its result


class WriteOp(StrEnum):
    """What a row of `forge_write` does on the forge. Each is idempotent."""

    PULL_REQUEST = "pull_request"
    STATUS_COMMENT = "status_comment"
    COMMENT = "comment"
    STATE_LABEL = "state_label"
    ADD_LABEL = "add_label"
    REMOVE_LABEL = "remove_label"
    CHILD_ISSUE = "child_issue"


class WriteState(StrEnum):
    WAITING = "waiting"
    DONE = "done"
    REFUSED = "refused"  # the forge said no for good; an operator is told
    VOID = "void"  # overtaken: a person did by hand what the write was for, or took its object away


class WorkerRole(StrEnum):
    SUPERVISOR = "supervisor"
    POLLER = "poller"
    RUNNER = "runner"
    CTL = "ctl"


class PollResult(StrEnum):
    """Why a repository is as quiet as it is: the last poll, in one word."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    LIMITED = "limited"
    UNREACHABLE = "unreachable"
    MISSING = "missing"  # 404, 410, 451
    FORBIDDEN = "forbidden"
    UNAUTHORIZED = "unauthorized"
    BROKEN = "broken"  # an answer that could not be understood


class EventKind(StrEnum):
    """What happened to a job. Open in the schema: a newer program's kinds are shown as they are."""

    ENQUEUED = "enqueued"
    REROUTED = "rerouted"
    RELANED = "relaned"
    CLAIMED = "claimed"
    STARTED = "started"
    PHASE = "phase"
    REQUEUED = "requeued"
    RELEASED = "released"
    LEASE_EXPIRED = "lease_expired"
    CLAIM_LOST = "claim_lost"
    CANCEL_REQUESTED = "cancel_requested"
    AGENT_STARTED = "agent_started"
    AGENT_ENDED = "agent_ended"
    WRITE_DONE = "write_done"
    WRITE_REFUSED = "write_refused"
    FINISHED = "finished"


E = TypeVar("E", bound=StrEnum)


def parse_enum(enum: type[E], value: Any, column: str) -> E:
    """The member of `enum` that a row's `column` holds; UnknownValue if this build has none."""
    try:
        member: E = _members(enum)[value]
    except KeyError:
        raise UnknownValue(column, value) from None
    return member


@cache
def _members(enum: type[E]) -> dict[str, E]:
    """By their words: a job's row asks for six of them, and an enum's own call takes five times as long."""
    return {str(member): member for member in enum}


@dataclass(frozen=True, slots=True)
class RepoRef:
    """A repository's identity. It carries the host, since two Gitea hosts may both have `acme/site`."""

    forge: Forge
    host: str
    owner: str
    repo: str

    def __str__(self) -> str:
        return f"{self.forge}:{self.host}/{self.owner}/{self.repo}"

    @property
    def full_name(self) -> str:
        return f"{self.owner}/{self.repo}"


@dataclass(frozen=True, slots=True)
class IssueRef:
    forge: Forge
    host: str
    owner: str
    repo: str
    number: int

    def __str__(self) -> str:
        return f"{self.repo_ref}#{self.number}"

    @property
    def repo_ref(self) -> RepoRef:
        return RepoRef(self.forge, self.host, self.owner, self.repo)


@dataclass(frozen=True, slots=True)
class PollSchedule:
    """When a repository is polled and may start work.

    `interval_seconds` between polls; quiet hours are wall time in the IANA zone `quiet_zone`, half-open
    [quiet_from, quiet_until), off when either is None or both are equal, and may run over midnight.
    """

    interval_seconds: int = 60
    quiet_from: time | None = None
    quiet_until: time | None = None
    quiet_zone: str = "UTC"
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class TrackedRepo:
    id: int
    ref: RepoRef
    clone_url: str
    default_branch: str
    schedule: PollSchedule
    max_running: int | None  # its own limit on jobs in hand at once, over all lanes and hosts
    verify_command: str | None  # run in the workspace after the agent; a failure is not delivered
    daily_usd: float | None  # what its runs may cost in a UTC day, over all lanes and hosts
    daily_jobs: int | None
    held_until: datetime | None  # UTC; nothing of it starts before then
    hold_reason: str | None
    last_etag: str | None
    etag_key: str | None  # what the ETag depends on beside the repository: URL, Accept, token fingerprint
    body_hash: str | None  # for forges that send no ETag
    last_polled_at: datetime | None
    last_full_sweep_at: datetime | None
    next_poll_at: datetime
    poll_result: PollResult | None
    poll_detail: str | None
    poll_failures: int  # in a row
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue as a forge shows it now. `is_pull_request` is truth, not presence of a key (FORGES.md 2)."""

    ref: IssueRef
    title: str
    body: str
    labels: tuple[str, ...]
    is_open: bool
    is_pull_request: bool
    author: str
    url: str
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class IssuePage:
    """What one poll of a repository found.

    `not_modified` means that the forge (304) or the hash of the body says that nothing changed: `issues` is
    then empty and means nothing. It is not an empty repository. `etag` and `body_hash` are to be stored with
    what the poll found, in one transaction, and only then.
    """

    issues: tuple[Issue, ...]
    etag: str | None = None
    etag_key: str | None = None
    body_hash: str | None = None
    not_modified: bool = False
    moved_to: RepoRef | None = None  # the forge answered under another name


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository as its forge describes it. `ref` carries the forge's own spelling of the name."""

    ref: RepoRef
    clone_url: str
    default_branch: str
    archived: bool
    empty: bool


@dataclass(frozen=True, slots=True)
class Comment:
    id: int
    author: str
    body: str
    url: str
    created_at: datetime | None = None
    updated_at: datetime | None = None  # when its text was last changed


@dataclass(frozen=True, slots=True)
class Labelling:
    """The act of setting a label, as an issue's history tells it. `id` is the forge's, for comparing."""

    id: int
    login: str  # empty: an account that is gone
    is_bot: bool
    at: datetime | None


@dataclass(frozen=True, slots=True)
class PullRequest:
    number: int
    url: str
    title: str
    body: str
    head: str
    base: str
    is_open: bool
    merged: bool
    draft: bool


@dataclass(frozen=True, slots=True)
class Job:
    id: UUID
    issue: IssueRef
    repo_id: int | None
    title: str
    kind: JobKind
    state: JobState
    lane: AgentKind
    priority: int  # lower goes first
    run_at: datetime  # not claimed before this
    attempts: int  # counted at the claim
    max_attempts: int
    claim_seq: int  # the fence: one up at each claim
    claimed_by: str | None
    claim_expires_at: datetime | None
    claimed_lane: AgentKind | None  # the lane whose slot it holds; `lane` may be re-routed meanwhile
    slot: int | None
    phase: Phase
    parent_job_id: UUID | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    branch: str | None
    work_host: str | None  # whose disk holds its workspace
    base_commit: str | None
    head_commit: str | None
    pull_request_number: int | None
    pull_request_url: str | None
    result: dict[str, Any] | None  # what the agent reported, validated; kept so that a later phase can go on
    last_error: str | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    lane_pinned: bool = False  # a label of its issue names the lane
    relaned_at: datetime | None = None  # when it was moved out of a held lane


@dataclass(frozen=True, slots=True)
class Relaned:
    """A job that was moved out of a held lane, as it is now, and why that lane is held."""

    job: Job
    was: AgentKind
    hold_reason: str
    held_until: datetime | None  # UTC; None until an operator resumes the lane


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to work a job: what every write of its holder must match in the row."""

    job: Job
    worker: str
    seq: int


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane's row: what the governor goes by. Times are UTC by the database's clock."""

    lane: AgentKind
    cap: int
    paused: bool
    pause_reason: str | None
    held_until: datetime | None  # with `hold_reason` set and this None, held until an operator resumes it
    hold_reason: str | None
    running: int
    pending: int
    daily_usd: float | None = None  # what its runs may cost in a UTC day, over all hosts
    daily_jobs: int | None = None
    probing: bool = False  # after a usage limit: one job goes first

    @property
    def held(self) -> bool:
        return self.hold_reason is not None


@dataclass(frozen=True, slots=True)
class ForgeWrite:
    id: int
    job_id: UUID | None
    issue: IssueRef
    op: WriteOp
    payload: dict[str, Any]
    state: WriteState
    attempts: int
    next_try_at: datetime
    last_error: str | None
    result: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NewWrite:
    """A forge write to be queued with the transition that wants it."""

    op: WriteOp
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """What an agent run has used so far."""

    cost_usd: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    turns: int | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class AgentRun:
    id: UUID
    job_id: UUID
    claim_seq: int
    agent: AgentKind
    host: str
    worker: str
    session_id: str | None
    resumed: bool
    started_at: datetime
    ended_at: datetime | None
    outcome: Outcome | None
    detail: str | None
    exit_code: int | None
    usage: Usage


@dataclass(frozen=True, slots=True)
class JobEvent:
    id: int
    job_id: UUID
    at: datetime
    kind: str
    actor: str
    detail: dict[str, Any]


class TirelessError(Exception):
    """Any error that tireless itself raises; its text is fit to be shown to an operator."""


class UnknownValue(TirelessError):
    def __init__(self, column: str, value: object) -> None:
        self.column = column
        self.value = value
        super().__init__(
            f"column {column} holds {value!r}, which this build does not understand; "
            "a migration added it without the matching enum member"
        )


class IllegalTransition(TirelessError):
    """A job was asked to move where it cannot go: out of a terminal state, or it does not exist."""

    def __init__(self, job_id: UUID, state: JobState | None, to: JobState) -> None:
        self.job_id = job_id
        self.state = state
        self.to = to
        was = f"is {state}" if state is not None else "does not exist"
        super().__init__(f"job {job_id} {was} and cannot become {to}")


class ClaimLost(TirelessError):
    """A write of a claim's holder matched no row: somebody else has the job, or it has ended."""

    def __init__(self, job_id: UUID, worker: str, seq: int) -> None:
        self.job_id = job_id
        self.worker = worker
        self.seq = seq
        super().__init__(f"claim {seq} of {worker} on job {job_id} is lost")
