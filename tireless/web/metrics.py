"""Numbers -> Prometheus text format 0.0.4; pure.

Every host's poller that has [web] set shows the same rows: scrape one, or take max() over instances, never sum().
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from tireless import __version__
from tireless.entities import JobState, PollResult, WorkerRole, WriteState
from tireless.store.status import JobCount, Numbers

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TODAY = "since 00:00 UTC of the database's clock, when it starts again at 0; only rows that are still kept"
_LIVE = tuple(state for state in JobState if not state.terminal)

Sample = tuple[Mapping[str, str], float]


def exposition(numbers: Numbers) -> str:
    return "".join(line + "\n" for line in _lines(numbers))


def _lines(numbers: Numbers) -> Iterator[str]:
    yield from family(
        "build_info", "gauge", "The version of this poller; always 1.", [({"version": __version__}, 1)]
    )
    yield from _jobs(numbers)
    yield from _lanes(numbers)
    yield from _runs(numbers)
    yield from _writes(numbers)
    yield from family(
        "repos",
        "gauge",
        "Enabled repositories, by the result of their last poll.",
        _filled("result", [*PollResult, "never"], numbers.repos),
    )
    yield from family(
        "workers",
        "gauge",
        "Processes that were seen within 5 minutes or hold a job, on all hosts, by role.",
        _filled("role", WorkerRole, numbers.workers),
    )


def _jobs(numbers: Numbers) -> Iterator[str]:
    lanes = [lane.lane for lane in numbers.lanes]
    terminal = [state for state in JobState if state.terminal]
    yield from family(
        "jobs",
        "gauge",
        "Live jobs, by lane and state. Ended ones: tireless_jobs_finished_total.",
        _by_lane(lanes, _LIVE, numbers.counts),
    )
    yield from family(
        "jobs_finished_total",
        "counter",
        f"Jobs that ended, by lane and state, {_TODAY}.",
        _by_lane(lanes, terminal, numbers.finished_today),
    )


def _lanes(numbers: Numbers) -> Iterator[str]:
    lanes, now = numbers.lanes, numbers.now
    by = [({"lane": lane.lane}, lane) for lane in lanes]
    yield from family(
        "lane_slots_cap", "gauge", "Jobs that the lane may have in hand at once.", [(k, v.cap) for k, v in by]
    )
    yield from family("lane_slots_used", "gauge", "Slots in hand.", [(k, v.used) for k, v in by])
    yield from family(
        "lane_paused", "gauge", "Whether an operator has paused the lane.", [(k, v.paused) for k, v in by]
    )
    yield from family(
        "lane_held",
        "gauge",
        "Whether the lane is held now: a rate limit, no login, no credit.",
        [(k, v.held) for k, v in by],
    )
    yield from family(
        "lane_hold_end_timestamp_seconds",
        "gauge",
        "When the hold lifts itself, Unix time; absent without a hold or without a known end.",
        [(k, v.held_until.timestamp()) for k, v in by if v.held and v.held_until is not None],
    )
    yield from family(
        "lane_oldest_pending_age_seconds",
        "gauge",
        "How long ago the jobs next in line (one a priority) were queued, at the most; 0 with none.",
        [(k, _age(v.oldest_pending_at, now)) for k, v in by],
    )


def _runs(numbers: Numbers) -> Iterator[str]:
    by = [({"agent": r.agent, "outcome": r.outcome}, r) for r in numbers.runs_today]
    yield from family(
        "agent_runs_total",
        "counter",
        f"Agent runs that ended, by agent and outcome, {_TODAY}.",
        [(k, r.n) for k, r in by],
    )
    yield from family(
        "agent_cost_usd_total",
        "counter",
        f"What the runs that ended have cost, as the agents say, in US dollars, {_TODAY}.",
        [(k, r.cost_usd) for k, r in by],
    )
    tokens = [({**k, "direction": "input"}, r.input_tokens) for k, r in by]
    tokens += [({**k, "direction": "output"}, r.output_tokens) for k, r in by]
    yield from family(
        "agent_tokens_total",
        "counter",
        f"Tokens of the runs that ended, as the agents say, {_TODAY}.",
        tokens,
    )


def _writes(numbers: Numbers) -> Iterator[str]:
    open_ = {w.state: w for w in numbers.writes_open}
    waiting = open_.get(WriteState.WAITING)
    yield from family(
        "forge_writes",
        "gauge",
        "Forge writes that wait, or were refused for good and not settled since.",
        _filled("state", (WriteState.WAITING, WriteState.REFUSED), {k: w.n for k, w in open_.items()}),
    )
    yield from family(
        "forge_writes_done_total",
        "counter",
        f"Forge writes that were done, {_TODAY}.",
        [({}, numbers.writes_done_today)],
    )
    yield from family(
        "forge_write_oldest_waiting_age_seconds",
        "gauge",
        "How long the oldest waiting forge write has been queued; 0 with none.",
        [({}, _age(waiting.oldest_at if waiting else None, numbers.now))],
    )


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """One metric: HELP, TYPE, samples. The name gets the prefix of all."""
    yield f"# HELP tireless_{name} {_escaped(text)}"
    yield f"# TYPE tireless_{name} {kind}"
    for labels, value in samples:
        written = ",".join(f'{key}="{_quoted(text)}"' for key, text in labels.items())
        yield f"tireless_{name}{'{' + written + '}' if written else ''} {_number(value)}"


def _by_lane(lanes: Iterable[str], states: Iterable[str], counts: Iterable[JobCount]) -> Iterator[Sample]:
    """Every lane in every state, so that a series does not vanish at 0; and what this build does not know."""
    found = {(c.lane, c.state): c.n for c in counts}
    wanted = [(str(lane), str(state)) for lane in lanes for state in states]
    for lane, state in dict.fromkeys([*wanted, *found]):
        yield {"lane": lane, "state": state}, found.get((lane, state), 0)


def _filled(label: str, known: Iterable[str], found: Mapping[str, int]) -> Iterator[Sample]:
    for value in dict.fromkeys([*map(str, known), *found]):
        yield {label: value}, found.get(value, 0)


def _age(at: datetime | None, now: datetime) -> float:
    return max((now - at).total_seconds(), 0.0) if at is not None else 0.0


def _number(value: float) -> str:
    return repr(float(value)) if isinstance(value, float) else str(int(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
