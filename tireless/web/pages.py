"""The pages: what was read from the database -> HTML; pure. No script, one inline style, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from tireless import __version__, standing
from tireless.config import Config
from tireless.standing import State, Stop
from tireless.store import workers
from tireless.store.status import (
    FINISHED_JOBS,
    REPOS,
    WORKERS_SHOWN,
    EventStatus,
    History,
    JobFacts,
    JobStatus,
    LaneStatus,
    Overview,
    RepoStatus,
    RunStatus,
    WorkerStatus,
    WriteStatus,
)
from tireless.store.workers import Draining
from tireless.web.markup import Html, el, join, link, strange
from tireless.web.style import STYLE

REFRESH_SECONDS = 10

# Colours only: a state that is not listed is shown without one.
_TONES = {
    "ok": ("running", "claimed", "delivered", "completed", "done", "changed", "unchanged"),
    "warn": ("blocked", "limited", "waiting", "rate_limited", "overloaded", "turn_limit", "budget_limit"),
    "dim": ("pending", "abandoned", "stopped", "void", "never"),
    "bad": (
        *("failed", "refused", "crashed", "stalled", "timed_out", "not_authenticated", "out_of_credit"),
        *("unreachable", "missing", "forbidden", "unauthorized", "broken"),
    ),
}
_TONE = {state: tone for tone, states in _TONES.items() for state in states}


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    number: bool = False


SiteOf = Callable[[str, str], str]  # (forge, host) -> where people see it, without a slash at the end


def overview_page(view: Overview, site_of: SiteOf, config: Config) -> str:
    """`config`: of the host that shows the page."""
    alive = [w for w in view.workers if standing.is_alive(w, config.host, view.now)]
    pending = sum(c.n for c in view.counts if c.state == "pending")
    waiting = sum(job.state == "pending" for job in view.live)
    live = f"Live jobs (the next {waiting} of {pending} pending)" if waiting < pending else "Live jobs"
    repos = f"Repositories (the first {REPOS})" if len(view.repos) >= REPOS else "Repositories"
    return _page(
        "tireless",
        view.now,
        *(_drains(host, view.now) for host in workers.draining(alive)),
        _section("Lanes", _LANES, (_lane(lane, view, alive, config) for lane in view.lanes)),
        _section(live, _LIVE, (_live(job, view.now, site_of) for job in view.live)),
        _section("Forge writes that wait or were refused", _WRITES, _writes(view.writes, view.now, site_of)),
        _section(
            f"Finished jobs (the last {FINISHED_JOBS})",
            _FINISHED,
            (_finished(job, view.now, site_of) for job in view.finished),
        ),
        _section(repos, _REPOS, (_repo(repo, view.now, site_of) for repo in view.repos)),
        _section("Workers", _WORKERS, (_worker(worker, view.now) for worker in view.workers[:WORKERS_SHOWN])),
        refresh=True,
    )


def history_page(view: History, site_of: SiteOf) -> str:
    job, now = view.job, view.now
    return _page(
        f"job {str(job.id)[:8]}",
        now,
        _section("Job", (Column(""), Column("")), _facts(job, view.facts, now, site_of)),
        _section("Agent runs", _RUNS, (_run(r, now) for r in view.runs)),
        _section("Forge writes", _WRITES, _writes(view.writes, now, site_of)),
        _section("Events", _EVENTS, (_event(e, now) for e in view.events)),
        refresh=job.finished_at is None,
    )


def error_page(title: str, text: str, *, refresh: bool) -> str:
    return _page(title, None, el("p", text), refresh=refresh)


# -- sections ---------------------------------------------------------------------------------------------

_LANES = (
    Column("lane"),
    Column("cap", True),
    Column("in hand", True),
    Column("pending", True),
    Column("oldest pending"),
    Column("starts jobs"),
)


def _lane(
    lane: LaneStatus, view: Overview, alive: Sequence[WorkerStatus], config: Config
) -> tuple[object, ...]:
    pending = sum(c.n for c in view.counts if (c.lane, c.state) == (lane.lane, "pending"))
    stops = standing.stops(lane, alive, view.now, standing.lane_off_in(config, lane.lane))
    return (
        lane.lane,
        lane.cap,
        lane.used,
        pending,
        _ago(lane.oldest_pending_at, view.now),
        join(*(_stop(stop, view.now) for stop in stops), by="; ") if stops else el("span", "yes", class_="ok"),
    )


def _stop(stop: Stop, now: datetime) -> Html:
    """A reason for which a lane starts nothing, and its end, where it has one."""
    worst = stop.state in (State.HELD, State.NO_RUNNER)
    said = join(el("b", stop.state.value, class_="bad" if worst else "warn"), ": ", strange(stop.why, 500))
    if stop.state is not State.HELD:
        return said
    if stop.until is None:
        return join(said, ", until an operator resumes it")
    return join(said, ", until ", _time(stop.until), f" (in {span(stop.until, now)})")


_LIVE = (
    Column("issue"),
    Column("title"),
    Column("kind"),
    Column("lane"),
    Column("state"),
    Column("phase"),
    Column("attempt", True),
    Column("since"),
    Column("last error"),
)


def _live(job: JobStatus, now: datetime, site_of: SiteOf) -> tuple[object, ...]:
    state: object = tone(job.state)
    if job.cancel_requested:
        state = join(state, ", cancel asked for")
    elif job.state == "pending" and job.run_at > now:
        state = join(state, f", not for {span(job.run_at, now)}")
    return (
        _issue(job, site_of),
        _title(job),
        job.kind,
        job.lane,
        state,
        job.phase,
        f"{job.attempts}/{job.max_attempts}",
        _ago(job.since, now),
        strange(job.last_error or ""),
    )


_FINISHED = (
    Column("issue"),
    Column("title"),
    Column("kind"),
    Column("lane"),
    Column("state"),
    Column("ended"),
    Column("cost", True),
    Column("pull request"),
    Column("reason"),
)


def _finished(job: JobStatus, now: datetime, site_of: SiteOf) -> tuple[object, ...]:
    return (
        _issue(job, site_of),
        _title(job),
        job.kind,
        job.lane,
        tone(job.state),
        _ago(job.finished_at, now),
        _cost(job.cost_usd),
        _pull_request(job),
        strange(job.last_error or ""),
    )


_WRITES = (
    Column("issue"),
    Column("what"),
    Column("state"),
    Column("tries", True),
    Column("queued"),
    Column("next try"),
    Column("why"),
)


def _writes(writes: Iterable[WriteStatus], now: datetime, site_of: SiteOf) -> Iterable[tuple[object, ...]]:
    for write in writes:
        job = el("a", write.op, href=f"/jobs/{write.job_id}") if write.job_id else write.op
        due = "now" if write.next_try_at <= now else f"in {span(write.next_try_at, now)}"
        yield (
            _issue(write, site_of),
            job,
            tone(write.state),
            write.attempts,
            _ago(write.created_at, now),
            due if write.state == "waiting" else None,
            strange(write.last_error or "", 300),
        )


_REPOS = (
    Column("repository"),
    Column("last poll"),
    Column("result"),
    Column("failures", True),
    Column("next"),
    Column("detail"),
)


def _repo(repo: RepoStatus, now: datetime, site_of: SiteOf) -> tuple[object, ...]:
    due = "due" if repo.next_poll_at <= now else f"in {span(repo.next_poll_at, now)}"
    return (
        link(_repo_url(repo, site_of), _repo_name(repo)),
        _ago(repo.last_polled_at, now),
        tone(repo.poll_result or "never"),
        repo.poll_failures,
        due if repo.enabled else el("span", "disabled", class_="warn"),
        strange(repo.poll_detail or "", 300),
    )


_WORKERS = (
    Column("host"),
    Column("role"),
    Column("lane"),
    Column("pid", True),
    Column("version"),
    Column("up for"),
    Column("seen"),
    Column("job"),
    Column("waits for"),
)


def _drains(host: Draining, now: datetime) -> Html:
    jobs = "1 job" if host.jobs == 1 else f"{host.jobs} jobs"
    state = el("b", "draining", class_="warn")
    return el(
        "p",
        state,
        f": host {host.host} takes nothing new and waits for {jobs}, since ",
        _ago(host.since, now),
        ".",
    )


def _worker(worker: WorkerStatus, now: datetime) -> tuple[object, ...]:
    return (
        worker.host,
        worker.role,
        worker.lane,
        worker.pid,
        worker.version,
        span(worker.started_at, now),
        _ago(worker.seen_at, now),
        el("a", str(worker.job_id)[:8], href=f"/jobs/{worker.job_id}") if worker.job_id else None,
        worker.waits_for,
    )


def _facts(job: JobStatus, facts: JobFacts, now: datetime, site_of: SiteOf) -> Iterable[tuple[object, object]]:
    parent = facts.parent_job_id
    commits = join(el("code", facts.base_commit), " … ", el("code", facts.head_commit))
    found: tuple[tuple[str, object], ...] = (
        ("issue", join(_issue(job, site_of), " ", strange(job.title, 500))),
        ("id", el("code", job.id)),
        ("state", join(tone(job.state), ", phase ", job.phase, f", attempt {job.attempts}/{job.max_attempts}")),
        ("kind and lane", f"{job.kind}, {job.lane}"),
        ("queued", _ago(job.since, now)),
        ("ended", _ago(job.finished_at, now)),
        ("cost", _cost(job.cost_usd)),
        ("pull request", _pull_request(job)),
        ("branch", el("code", strange(facts.branch)) if facts.branch else None),
        ("commits", commits if facts.base_commit else None),
        ("held by", facts.claimed_by),
        ("lease ends", _time(facts.claim_expires_at)),
        ("workspace on", facts.work_host),
        ("child of", el("a", str(parent)[:8], href=f"/jobs/{parent}") if parent else None),
        ("cancel asked for", strange(facts.cancel_reason or "yes", 500) if job.cancel_requested else None),
        ("last error", strange(job.last_error, 4000) if job.last_error else None),
    )
    return ((el("span", name, class_="dim"), value) for name, value in found if value)


_RUNS = (
    Column("started"),
    Column("took"),
    Column("agent"),
    Column("model"),
    Column("outcome"),
    Column("exit", True),
    Column("turns", True),
    Column("tokens in", True),
    Column("tokens out", True),
    Column("cost", True),
    Column("detail"),
)


def _run(run: RunStatus, now: datetime) -> tuple[object, ...]:
    return (
        _ago(run.started_at, now),
        span(run.started_at, run.ended_at or now),
        join(run.agent, " on ", run.host, " (resumed)" if run.resumed else ""),
        run.model,
        tone(run.outcome) if run.outcome else "running" if run.ended_at is None else "unknown",
        run.exit_code,
        run.turns,
        run.input_tokens,
        run.output_tokens,
        _cost(run.cost_usd),
        strange(run.detail or "", 1000),
    )


_EVENTS = (Column("when"), Column("what"), Column("by"), Column("detail"))


def _event(event: EventStatus, now: datetime) -> tuple[object, ...]:
    detail = "" if event.detail == "{}" else event.detail
    return (_ago(event.at, now), event.kind, event.actor, el("code", strange(detail, 1000)) if detail else None)


# -- parts ------------------------------------------------------------------------------------------------


def _page(title: str, now: datetime | None, *parts: object, refresh: bool) -> str:
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width,initial-scale=1"),
        el("meta", http_equiv="refresh", content=str(REFRESH_SECONDS)) if refresh else None,
        el("title", title),
        el("style", STYLE),
    )
    said = join("version ", __version__, join(", at ", _time(now)) if now else None)
    header = el("header", el("h1", el("a", title, href="/")), el("span", said, class_="dim"))
    return f"<!doctype html>\n{el('html', head, el('body', header, *parts), lang='en')}\n"


def _section(title: str, columns: tuple[Column, ...], lines: Iterable[tuple[object, ...]]) -> Html:
    body = [
        el(
            "tr",
            *(el("td", cell, class_="n" if c.number else None) for c, cell in zip(columns, line, strict=True)),
        )
        for line in lines
    ]
    if not body:
        return join(el("h2", title), el("p", "none", class_="dim"))
    heads = (el("th", c.title, class_="n" if c.number else None) for c in columns)
    table = el("table", el("thead", el("tr", *heads)), el("tbody", *body))
    return join(el("h2", title), el("div", table, class_="scroll"))


def tone(state: str) -> Html:
    return el("span", state, class_=_TONE.get(state))


def _repo_name(row: JobStatus | WriteStatus | RepoStatus) -> Html:
    return strange(f"{row.host}/{row.owner}/{row.repo}")


def _repo_url(row: JobStatus | WriteStatus | RepoStatus, site_of: SiteOf) -> str:
    return f"{site_of(row.forge, row.host)}/{quote(row.owner, safe='')}/{quote(row.repo, safe='')}"


def _issue(row: JobStatus | WriteStatus, site_of: SiteOf) -> Html:
    return link(f"{_repo_url(row, site_of)}/issues/{row.number}", _repo_name(row), f"#{row.number}")


def _title(job: JobStatus) -> Html:
    return el("a", strange(job.title or str(job.id)), href=f"/jobs/{job.id}")


def _pull_request(job: JobStatus) -> Html | None:
    if job.pull_request_url is None:
        return None
    return link(job.pull_request_url, f"#{job.pull_request_number}" if job.pull_request_number else "open")


def _cost(usd: float | None) -> str | None:
    return None if usd is None else f"${usd:,.2f}"


def _time(at: datetime | None) -> Html | None:
    if at is None:
        return None
    return el("time", _utc(at), datetime=at.isoformat())


def _ago(at: datetime | None, now: datetime) -> Html | None:
    if at is None:
        return None
    return el("time", f"{span(at, now)} ago", datetime=at.isoformat(), title=_utc(at))


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(one: datetime, other: datetime) -> str:
    """How far apart, in the two largest units that tell something."""
    seconds = int(abs((other - one).total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600} h"
