"""Why a job does not run: facts in, reasons out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import UUID

import pytest

from tireless.ctl.explain import Facts, quiet_until, why
from tireless.ctl.output import when
from tireless.entities import (
    AgentKind,
    Forge,
    ForgeWrite,
    IssueRef,
    Job,
    JobKind,
    JobState,
    Lane,
    Phase,
    PollSchedule,
    RepoRef,
    TrackedRepo,
    WorkerRole,
    WriteOp,
    WriteState,
)
from tireless.governor import in_words
from tireless.store.budgets import Budget, Spending
from tireless.store.workers import Worker

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
REF = RepoRef(Forge.GITEA, "forge.test", "acme", "site")
ISSUE = IssueRef(Forge.GITEA, "forge.test", "acme", "site", 7)
LANE = Lane(AgentKind.CLAUDE_CODE, 2, False, None, None, None, 0, 1)


def job(**changes: Any) -> Job:
    empty: dict[str, Any] = dict.fromkeys(Job.__dataclass_fields__)
    return Job(
        **{
            **empty,
            "id": UUID(int=1),
            "issue": ISSUE,
            "repo_id": 1,
            "kind": JobKind.IMPLEMENT,
            "state": JobState.PENDING,
            "lane": AgentKind.CLAUDE_CODE,
            "priority": 5,
            "run_at": NOW,
            "attempts": 0,
            "max_attempts": 3,
            "claim_seq": 0,
            "phase": Phase.PREPARE,
            "title": "",
            "created_at": NOW,
            "updated_at": NOW,
            **changes,
        }
    )


def repo(**changes: Any) -> TrackedRepo:
    empty: dict[str, Any] = dict.fromkeys(TrackedRepo.__dataclass_fields__)
    settled = {"id": 1, "ref": REF, "schedule": PollSchedule(), "next_poll_at": NOW, "created_at": NOW}
    return TrackedRepo(**{**empty, "poll_failures": 0, **settled, **changes})


def worker(role: WorkerRole, host: str = "there") -> Worker:
    lane = AgentKind.CLAUDE_CODE if role is WorkerRole.RUNNER else None
    return Worker(f"{host}-{role}", host, role, lane, 1, "0", NOW, NOW, None)


RUNNER, POLLER = worker(WorkerRole.RUNNER), worker(WorkerRole.POLLER)
IDLE = replace(RUNNER, waits_for="claude is not on PATH")
BUSY = replace(RUNNER, job_id=UUID(int=2))
LEAVING = replace(BUSY, draining_since=NOW)
READY = Facts(NOW, job(), LANE, repo(), 0, [RUNNER, POLLER], 0)


LATER, MIDNIGHT = NOW + timedelta(days=2), NOW + timedelta(hours=12)
FREE, USED = Budget(None, None, 9.0, 9), Budget(5.0, None, 5.0, 1)
SPENT, REPO_SPENT = Spending(MIDNIGHT, USED, FREE), Spending(MIDNIGHT, FREE, USED)


def write(state: WriteState, op: WriteOp = WriteOp.COMMENT, error: str | None = None) -> ForgeWrite:
    return ForgeWrite(1, UUID(int=1), ISSUE, op, {}, state, 1, NOW, error)


def codes(facts: Facts) -> list[str]:
    return [reason.code for reason in why(facts)]


def test_with_nothing_in_its_way_it_starts_soon() -> None:
    assert codes(READY) == ["ready"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"lane": None}, "lane_missing"),
        ({"lane": replace(LANE, paused=True, pause_reason="x")}, "lane_paused"),
        ({"lane": replace(LANE, hold_reason="no login")}, "lane_held"),
        ({"lane": replace(LANE, hold_reason="limit", held_until=NOW + timedelta(hours=1))}, "lane_held"),
        ({"lane": replace(LANE, hold_reason="budget", held_until=MIDNIGHT), "spending": SPENT}, "lane_budget"),
        ({"lane": replace(LANE, hold_reason="limit", held_until=LATER), "spending": SPENT}, "lane_held"),
        ({"lane": replace(LANE, cap=0)}, "lane_cap_zero"),
        ({"lane": replace(LANE, running=2)}, "lane_full"),
        ({"alive": [POLLER]}, "no_runner"),
        ({"alive": []}, "no_runner"),
        ({"alive": [IDLE, POLLER]}, "agent_missing"),
        ({"alive": [LEAVING, POLLER]}, "draining"),
        ({"alive": [BUSY, LEAVING, POLLER]}, "runners_busy"),
        ({"alive": [POLLER], "lane_off_in": "/etc/t.toml"}, "lane_off"),
        ({"repo": None}, "repo_untracked"),
        ({"repo": repo(schedule=PollSchedule(enabled=False))}, "repo_disabled"),
        ({"repo": repo(schedule=PollSchedule(quiet_from=time(11), quiet_until=time(13)))}, "repo_quiet"),
        ({"repo": repo(held_until=NOW + timedelta(hours=1), hold_reason="budget")}, "repo_held"),
        ({"lane": replace(LANE, probing=True, running=1)}, "lane_probing"),
        ({"repo": repo(held_until=MIDNIGHT, hold_reason="x"), "spending": REPO_SPENT}, "repo_budget"),
        ({"repo": repo(max_running=2), "repo_running": 2}, "repo_limit"),
        ({"job": job(run_at=NOW + timedelta(minutes=5), last_error="boom")}, "backoff"),
        ({"job": job(work_host="elsewhere")}, "work_elsewhere"),
        ({"ahead": 3}, "queued"),
    ],
)
def test_each_reason_by_itself(change: dict[str, Any], code: str) -> None:
    assert codes(replace(READY, **change)) == [code]


def test_what_no_longer_holds_is_no_reason() -> None:
    over = replace(LANE, hold_reason="limit", held_until=NOW - timedelta(seconds=1))
    assert codes(replace(READY, lane=over)) == ["ready"]
    assert codes(replace(READY, lane_off_in="/etc/t.toml")) == ["ready"]  # another host has a runner
    assert codes(replace(READY, job=job(work_host="there"))) == ["ready"]
    waited = job(work_host="elsewhere", updated_at=NOW - timedelta(hours=2))
    assert codes(replace(READY, job=waited)) == ["ready"]
    assert codes(replace(READY, job=waited, host_gone=timedelta(hours=3))) == ["work_elsewhere"]
    assert codes(replace(READY, repo=repo(max_running=2), repo_running=1)) == ["ready"]
    assert codes(replace(READY, repo=repo(held_until=NOW, hold_reason="budget"))) == ["ready"]
    assert codes(replace(READY, lane=replace(LANE, probing=True))) == ["ready"]


def test_a_runner_without_its_agent_takes_only_what_an_agent_has_ended() -> None:
    other = worker(WorkerRole.RUNNER, "elsewhere")
    assert codes(replace(READY, alive=[IDLE, other])) == ["ready"]
    assert codes(replace(READY, alive=[IDLE], job=job(phase=Phase.PUSH))) == ["ready"]
    (missing,) = why(replace(READY, alive=[IDLE, replace(IDLE, host="elsewhere", waits_for="too old")]))
    assert missing.text == (
        "no runner of lane claude_code can start its agent: on there claude is not on PATH; on elsewhere too old"
    )
    begun = replace(READY, alive=[IDLE, other], job=job(work_host="there", phase=Phase.AGENT))
    (elsewhere,) = why(begun)
    assert elsewhere.code == "work_elsewhere"
    assert "on there, where its agent cannot be started (claude is not on PATH); other hosts" in elsewhere.text
    assert codes(replace(begun, job=job(work_host="there", phase=Phase.PUSH))) == ["ready"]


def test_hosts_that_drain_are_named_and_what_starts_it_again() -> None:
    both = replace(READY, alive=[LEAVING, replace(LEAVING, host="elsewhere")])
    (drains,) = why(both)
    assert (
        "every runner of lane claude_code drains (on elsewhere, there): it finishes what it has" in drains.text
    )
    assert drains.text.endswith("nothing starts until tireless-supervisor is started again")
    assert codes(replace(both, lane=replace(LANE, cap=2, running=2))) == ["draining", "lane_full"]
    assert why(replace(both, lane_off_in="/etc/t.toml"))[0].text.endswith("enabled in /etc/t.toml")
    other = worker(WorkerRole.RUNNER, "elsewhere")
    assert codes(replace(READY, alive=[LEAVING, other])) == ["ready"]  # another host takes it
    begun = replace(READY, alive=[LEAVING, other], job=job(work_host="there"))
    assert "where its runners drain; other hosts" in why(begun)[0].text


def test_the_one_to_act_on_comes_first() -> None:
    facts = replace(READY, lane=replace(LANE, paused=True, pause_reason="x", running=2), alive=[], ahead=2)
    assert codes(facts) == ["lane_paused", "no_runner", "lane_full"]


def test_held_jobs() -> None:
    held = job(state=JobState.RUNNING, claimed_by="w1", claim_expires_at=NOW + timedelta(minutes=5))
    assert codes(replace(READY, job=held)) == ["running"]
    stopping = replace(held, cancel_requested_at=NOW, cancel_reason="wrong")
    assert codes(replace(READY, job=stopping)) == ["stopping"]
    expired = replace(held, claim_expires_at=NOW - timedelta(seconds=1))
    assert codes(replace(READY, job=expired)) == ["lease_expired"]
    assert "no poller is alive" in why(replace(READY, job=expired, alive=[]))[0].text


def test_a_held_job_whose_runner_is_gone() -> None:
    until = NOW + timedelta(minutes=5)
    held = job(state=JobState.RUNNING, claimed_by="vm/boot/1/23039/5", claim_expires_at=until)
    gone = replace(READY, job=held, holder_gone=True)
    here = worker(WorkerRole.POLLER, "vm")
    (reason,) = why(replace(gone, alive=[here]))
    assert (reason.code, reason.text.partition("; ")[2]) == (
        "runner_gone",
        "the supervisor of vm takes the job back within seconds",
    )
    for alive, who in (([POLLER], "a poller of another host"), ([], "any poller")):
        (reason,) = why(replace(gone, alive=alive))
        assert reason.text == (
            "its runner vm/boot/1/23039/5 is gone, as is all of tireless on vm; start tireless-supervisor there, which "
            f"takes the job up at once, or else the lease ends at {when(until)}, and {who} takes it back then"
        )
    asked = replace(held, cancel_requested_at=NOW, cancel_reason="wrong")
    assert codes(replace(gone, job=asked)) == ["runner_gone"]
    expired = replace(held, claim_expires_at=NOW - timedelta(seconds=1))
    assert codes(replace(gone, job=expired)) == ["lease_expired"]


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        (AgentKind.CLAUDE_CODE, "is not logged in: run /login"),
        (AgentKind.OPENCODE, "the model's API refuses the key (401): no"),
    ],
)
def test_a_lane_whose_agent_is_not_logged_in_wants_its_key_renewed(kind: AgentKind, refusal: str) -> None:
    held = replace(LANE, lane=kind, hold_reason=in_words(refusal))
    alive = [replace(RUNNER, lane=kind)]
    (reason,) = why(replace(READY, job=job(lane=kind), lane=held, alive=alive, keys=["SOME_API_KEY"]))
    assert reason.text.endswith(
        f"; renew the key that lane.{kind}.env_from names ($SOME_API_KEY), restart tireless-supervisor, which reads "
        f"the environment at its start, then tireless-ctl lane resume {kind}"
    )
    other = replace(held, hold_reason="invoice first")
    (reason,) = why(replace(READY, job=job(lane=kind), lane=other, alive=alive))
    assert reason.text.endswith(f"(invoice first); tireless-ctl lane resume {kind}")


def test_a_label_that_the_wrong_person_set() -> None:
    ended = job(state=JobState.ABANDONED, finished_at=NOW)
    assert codes(replace(READY, job=ended, label_refused=True)) == ["ended", "label_refused"]


def test_ended_jobs_and_their_outbox() -> None:
    ended = job(state=JobState.FAILED, finished_at=NOW, last_error="boom")
    refused = write(WriteState.REFUSED, WriteOp.REMOVE_LABEL, "403")
    facts = replace(READY, job=ended, writes=[write(WriteState.WAITING, error="timed out"), refused])
    reasons = why(facts)
    assert [r.code for r in reasons] == ["ended", "write_waiting", "write_refused"]
    assert "boom" in reasons[0].text
    assert "1 write to its forge waits (the last error: timed out)" in reasons[1].text
    assert "take the opt-in label off: 403" in reasons[2].text


@pytest.mark.parametrize(
    ("zone", "start", "end", "quiet"),
    [
        ("UTC", time(12), time(13), True),  # half-open: it begins at 12:00
        ("UTC", time(11), time(12), False),  # and ends before it
        ("UTC", time(22), time(12, 1), True),  # over midnight
        ("UTC", time(22), time(7), False),
        ("UTC", time(12), time(12), False),  # equal ends are off
        ("America/New_York", time(8), time(9), True),  # 08:00 on the wall there
        ("Europe/Berlin", time(14), time(15), True),
    ],
)
def test_quiet_hours_are_hours_on_the_wall(zone: str, start: time, end: time, quiet: bool) -> None:
    schedule = PollSchedule(quiet_from=start, quiet_until=end, quiet_zone=zone)
    assert (quiet_until(schedule, NOW) is not None) is quiet
