"""One poll of one repository: what the forge is asked, and what of its answer becomes rows.

The forge is asked with no transaction open. What it answered, the jobs that follow from it, and the
validators (ETag, hash) that let the next poll be cheap are then stored in one transaction. Died in between,
the poller has stored nothing, and the next poll sees the same answer again.

    changed        issues that ask for a job get one; lanes of live jobs follow their labels; a queued job whose
                   issue is no longer opted in and open is withdrawn, one that runs is asked to stop
    unchanged      304, or the same hash: it means that nothing changed, never that the list is empty
    limited        polled again when the forge said; other hosts and tokens go on
    moved          the row follows to the new name
    everything else is a failure of that repository alone, which then waits longer each time, up to an hour

Only a list that was read after a job began may withdraw it, and not before the issue itself says so: a row may be
missing from a list because rows moved between two of its pages. Only a list that was read after a job ended may
start another for the same issue: an old list may still show the old label.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

from tireless import delivery, who
from tireless.clients import Clients
from tireless.config import Config
from tireless.entities import Issue, IssuePage, IssueRef, Job, PollResult, RepoRef, TirelessError, TrackedRepo
from tireless.forge import (
    Broken,
    Forbidden,
    ForgeClient,
    ForgeError,
    Limited,
    Moved,
    NotFound,
    Unauthorized,
    Unreachable,
)
from tireless.inflight import InFlight
from tireless.labels import LabelProtocol, is_opted_in
from tireless.process import ChildContext
from tireless.store import intake, jobs, refusals, repos, writes
from tireless.store.queries import Connection

log = logging.getLogger(__name__)

_FAILED: tuple[tuple[type[ForgeError], PollResult], ...] = (
    (NotFound, PollResult.MISSING),
    (Forbidden, PollResult.FORBIDDEN),
    (Unauthorized, PollResult.UNAUTHORIZED),
    (Broken, PollResult.BROKEN),
)


class Polling:
    """Polls repositories, from several threads at once. `connect` lends a connection for a moment."""

    def __init__(
        self,
        ctx: ChildContext,
        clients: Clients,
        in_flight: InFlight,
        connect: Callable[[], AbstractContextManager[Connection]],
    ) -> None:
        self._ctx = ctx
        self._clients = clients
        self._in_flight = in_flight
        self._connect = connect

    def poll(self, repo: TrackedRepo, listed_at: datetime) -> None:
        """Ask for what is opted in, and record it. `listed_at`: the database's time from before (UTC)."""
        if self._ctx.stop_event.is_set():
            return
        full = self._full_sweep_due(repo, listed_at)
        host, began = (str(repo.ref.forge), repo.ref.host.lower()), time.monotonic()
        try:
            client = self._clients.of(repo.ref)
            page = client.list_opted_in_issues(
                repo.ref,
                self._ctx.config.labels.opt_in,
                etag=None if full else repo.last_etag,
                etag_key=None if full else repo.etag_key,
                body_hash=None if full else repo.body_hash,
            )
        except (ForgeError, TirelessError) as e:
            self._in_flight.ended(host, time.monotonic() - began, answered=not isinstance(e, Unreachable))
            self._record_failure(repo, e, listed_at)
            return
        self._in_flight.ended(host, time.monotonic() - began, answered=True)
        if page.moved_to is not None:
            repo = self._follow(repo, page.moved_to, client)
        spared = self._spared(client, repo, page, listed_at)
        again = self._set_again(client, repo, page, listed_at, full=full)
        with self._connect() as conn:
            record(conn, self._ctx.config, repo, page, listed_at, full=full, spared=spared, again=again)

    def _set_again(
        self, client: ForgeClient, repo: TrackedRepo, page: IssuePage, listed_at: datetime, *, full: bool
    ) -> SetAgain:
        """Look at the history of issues whose label was refused, if they have changed since it was last read."""
        if page.not_modified:
            return SetAgain()
        with self._connect() as conn:
            refused = refusals.of_repo(conn, repo.id)
        numbers, unsure = set(), False
        for issue in page.issues:
            refusal = refused.get(issue.ref.number)
            if refusal is None or (not full and issue.updated_at == refusal.seen_update is not None):
                continue
            try:
                found = who.last_labelling(client, issue.ref, self._ctx.config.labels.opt_in)
            except ForgeError as e:
                log.warning("history not read issue=%s error=%s", issue.ref, e)
                unsure = True
                continue
            if found is not None and found.id != refusal.labelling:
                numbers.add(issue.ref.number)
                continue
            # Forges tell whole seconds: what is set again in this very one would look like no change.
            just_now = issue.updated_at is None or (listed_at - issue.updated_at).total_seconds() < 2.0
            unsure |= just_now
            with self._connect() as conn:
                refusals.seen(conn, repo.id, issue.ref.number, None if just_now else issue.updated_at)
        return SetAgain(frozenset(numbers), unsure)

    def _spared(
        self, client: ForgeClient, repo: TrackedRepo, page: IssuePage, listed_at: datetime
    ) -> frozenset[int]:
        """Of the live jobs' issues that the list lacks, those that are not withdrawn all the same."""
        if page.not_modified:
            return frozenset()
        with self._connect() as conn:
            gone = missing(intake.live_jobs_of_repo(conn, repo), page.issues, listed_at)
        labels = self._ctx.config.labels
        return frozenset(job.issue.number for job in gone if is_asked_for(client, job.issue, labels))

    def _full_sweep_due(self, repo: TrackedRepo, now: datetime) -> bool:
        """A label taken off a row of page 2 changes no ETag of page 1: read everything about hourly."""
        last = repo.last_full_sweep_at
        return last is None or (now - last).total_seconds() >= self._ctx.config.poller.full_sweep_seconds

    def _record_failure(self, repo: TrackedRepo, error: TirelessError, listed_at: datetime) -> None:
        wait = None
        result = PollResult.UNREACHABLE
        if isinstance(error, Limited):
            result, wait = PollResult.LIMITED, error.retry_after_seconds
        else:
            for kind, named in _FAILED:
                if isinstance(error, kind):
                    result = named
        if repo.poll_result is not result:  # said once, not at each poll
            log.warning("poll failed repo=%s result=%s error=%s", repo.ref, result, error)
        if result is PollResult.MISSING and repo.poll_failures >= 2:
            wait = 3600.0
        with self._connect() as conn:
            repos.record_poll(
                conn, repo.id, result, detail=str(error)[:500], wait_seconds=wait, listed_at=listed_at
            )

    def _follow(self, repo: TrackedRepo, to: RepoRef, client: ForgeClient) -> TrackedRepo:
        log.warning("repository moved repo=%s to=%s", repo.ref, to)
        clone_url = client.get_repository(to).clone_url
        with self._connect() as conn:
            repos.rename(conn, repo.id, to, clone_url)
            found = repos.find(conn, repo_id=repo.id)
        return found[0] if found else repo


@dataclass(frozen=True, slots=True)
class SetAgain:
    """Issues of a poll whose label was refused and has been set again since. `unsure`: another look is needed."""

    numbers: frozenset[int] = frozenset()
    unsure: bool = False


def record(
    conn: Connection,
    config: Config,
    repo: TrackedRepo,
    page: IssuePage,
    listed_at: datetime,
    *,
    full: bool,
    spared: frozenset[int] = frozenset(),
    again: SetAgain | None = None,
) -> dict[int, intake.Verdict]:
    """Store what a poll found, with its validators, in one transaction. `spared`: see Polling._spared."""
    again = again or SetAgain()
    if page.not_modified:
        repos.record_poll(
            conn, repo.id, PollResult.UNCHANGED, page=page, store_validators=True, listed_at=listed_at
        )
        return {}
    with conn.transaction():
        live = intake.live_jobs_of_repo(conn, repo)
        intake.refresh_lanes(conn, live, page.issues, labels=config.labels, routing=config.routing)
        gone = missing(live, page.issues, listed_at)
        withdraw(conn, config, [job for job in gone if job.issue.number not in spared])
        opted_in = [issue.ref.number for issue in page.issues]
        writes.void_refused(conn, repo.ref, opted_in)
        refusals.lift(conn, repo.id, opted_in, listed_at, list(again.numbers))
        verdicts = intake.enqueue(
            conn,
            repo.id,
            repo.ref,
            page.issues,
            labels=config.labels,
            routing=config.routing,
            listed_at=listed_at,
            max_attempts=config.lease.max_attempts,
            cooldown_seconds=config.delivery.discover_cooldown_seconds,
            state_write=delivery.state_label_payload(config, "queued"),
        )
        # What was passed over because the list may be old, or because a write is still under way, must be
        # seen again: with the validators stored, the forge would answer "unchanged".
        settled = not spared and not again.unsure and not any(v in _LOOK_AGAIN for v in verdicts.values())
        detail = (
            ", ".join(f"#{n} {v}" for n, v in verdicts.items() if v is not intake.Verdict.LIVE)[:300] or None
        )
        repos.record_poll(
            conn,
            repo.id,
            PollResult.CHANGED,
            detail=detail,
            page=page,
            store_validators=settled,
            full=full and settled,
            listed_at=listed_at,
        )
    for number, verdict in verdicts.items():
        if verdict is intake.Verdict.ENQUEUED:
            log.info("enqueued issue=%s#%d", repo.ref, number)
    return verdicts


_LOOK_AGAIN = (
    intake.Verdict.STALE,
    intake.Verdict.WRITE_WAITING,
    intake.Verdict.COOLING,
)


def missing(live: Sequence[Job], issues: Sequence[Issue], listed_at: datetime) -> list[Job]:
    """The jobs whose issue is not in the list of those opted in and open, which was read after they began."""
    listed = {issue.ref.number for issue in issues}
    return [job for job in live if job.issue.number not in listed and job.created_at < listed_at]


def is_asked_for(client: ForgeClient, ref: IssueRef, labels: LabelProtocol) -> bool:
    """Whether the issue itself says that it is open and opted in, or says nothing that can be understood."""
    try:
        issue = client.get_issue(ref)
    except (NotFound, Moved):
        return False
    except ForgeError as e:
        log.warning("issue not looked at before withdrawal issue=%s error=%s", ref, e)
        return True
    return issue.is_open and not issue.is_pull_request and is_opted_in(issue.labels, labels)


def withdraw(conn: Connection, config: Config, gone: Sequence[Job]) -> None:
    """End jobs whose issue is no longer opted in and open. One that runs is asked to stop as long as its agent's work
    is not done; after that it is delivered, since the work is paid for."""
    reason = f"{delivery.WITHDRAWN}the issue is closed, or the label {config.labels.opt_in} was taken off"
    cancelled = jobs.cancel(
        conn,
        [job.id for job in gone],
        reason,
        writes_for=delivery.writes_for_end(config),
        actor="poller",
    )
    for job in cancelled:
        log.info("withdrawn job=%s issue=%s state=%s", job.id, job.issue, job.state)
