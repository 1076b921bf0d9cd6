"""Enqueue: the last gate before work exists. Each verdict, and that asking again changes nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from uuid import RFC_4122

import psycopg
import pytest

from tests.support.store import (
    CC,
    NOON,
    OC,
    REPO,
    claimed,
    clock_at,
    enqueue,
    event_kinds,
    issue,
    job_of,
    open_lanes,
    queued,
    running,
    scalar,
    set_clock,
    sweep,
    track,
)
from tests.support.wait import wait_until
from tireless.entities import Forge, Issue, IssueRef, JobKind, JobState, NewWrite, Phase, RepoRef, WriteOp
from tireless.routing import RoutingTable
from tireless.store import claims, intake, jobs, writes
from tireless.store.intake import Verdict
from tireless.store.queries import Connection


def test_repeated_polls_make_one_job(conn: Connection) -> None:
    assert enqueue(conn, [issue(1)]) == {1: Verdict.ENQUEUED}
    for _ in range(3):
        assert enqueue(conn, [issue(1)]) == {1: Verdict.LIVE}
    assert scalar(conn, "select count(*) from job") == 1
    assert scalar(conn, "select count(*) from job_event") == 1


def test_one_issue_twice_in_one_page_makes_one_job(conn: Connection) -> None:
    assert enqueue(conn, [issue(1), issue(1)]) == {1: Verdict.ENQUEUED}
    assert scalar(conn, "select count(*) from job") == 1


@pytest.mark.parametrize(
    "words", ['{"a", b}', "back\\slash\\", 'say "yes"', "NULL", "", " ", "a\nb\tc", "ü, 100 %s %(x)s", "'--;"]
)
def test_what_an_issue_says_is_kept_to_the_letter(conn: Connection, words: str) -> None:
    saying = [replace(issue(n), title=words, body=words, author=words) for n in (1, 2)]
    assert set(enqueue(conn, saying).values()) == {Verdict.ENQUEUED}
    kept = conn.execute(
        "select t.title, t.body, t.author, j.title from job_text t join job j on j.id = t.job_id"
    )
    assert kept.fetchall() == [(words,) * 4] * 2


def test_each_job_has_an_id_of_its_own(conn: Connection) -> None:
    enqueue(conn, [issue(n) for n in range(1, 101)])
    ids = [found for (found,) in conn.execute("select id from job").fetchall()]
    assert len({str(found)[:8] for found in ids}) == 100, "people tell them apart by the first digits"
    assert {(found.version, found.variant) for found in ids} == {(4, RFC_4122)}


def test_a_closed_issue_is_withdrawn_work(conn: Connection) -> None:
    assert enqueue(conn, [issue(1, is_open=False)]) == {1: Verdict.CLOSED}
    assert scalar(conn, "select count(*) from job") == 0


def test_the_opt_in_is_checked_here(conn: Connection) -> None:
    labelled = Issue(
        ref=IssueRef(REPO.forge, REPO.host, REPO.owner, REPO.repo, 1),
        title="",
        body="",
        labels=("tireless/implement", "tireless/state/queued"),
        is_open=True,
        is_pull_request=False,
        author="ann",
        url="",
    )
    assert enqueue(conn, [labelled]) == {1: Verdict.NOT_OPTED_IN}
    assert scalar(conn, "select count(*) from job") == 0


def test_a_pull_request_is_never_work(conn: Connection) -> None:
    assert enqueue(conn, [issue(1, is_pull_request=True)]) == {1: Verdict.PULL_REQUEST}
    assert scalar(conn, "select count(*) from job") == 0


@pytest.mark.parametrize("state", [s for s in JobState if not s.terminal and s is not JobState.PENDING])
def test_a_job_in_hand_is_live(conn: Connection, state: JobState) -> None:
    queued(conn, 1)
    held = claimed(conn)
    if state is JobState.RUNNING:
        claims.transition(conn, held, JobState.RUNNING)
    assert enqueue(conn, [issue(1)]) == {1: Verdict.LIVE}


@pytest.mark.parametrize("end", [s for s in JobState if s.terminal])
def test_after_any_end_a_new_job_may_come_and_the_old_stays(conn: Connection, end: JobState) -> None:
    (first,) = queued(conn, 1)
    claims.finish(conn, claimed(conn), end, [])
    assert enqueue(conn, [issue(1)]) == {1: Verdict.ENQUEUED}
    second = job_of(conn, 1)
    assert second.id != first.id
    assert second.state is JobState.PENDING
    old = jobs.get(conn, first.id)
    assert old is not None
    assert old.state is end


def test_identity_carries_the_host_and_ignores_case(conn: Connection) -> None:
    enqueue(conn, [issue(1)])
    loud = RepoRef(Forge.GITEA, "FORGE.test", "Acme", "SITE")
    other = RepoRef(Forge.GITEA, "other.test", "acme", "site")
    elsewhere = RepoRef(Forge.FORGEJO, REPO.host, REPO.owner, REPO.repo)
    for ref, verdict in ((loud, Verdict.LIVE), (other, Verdict.ENQUEUED), (elsewhere, Verdict.ENQUEUED)):
        repo = track(conn, ref)
        assert enqueue(conn, [issue(1, repo=ref)], repo) == {1: verdict}


def test_a_write_still_waiting_forbids_a_new_job(conn: Connection) -> None:
    queued(conn, 1)
    claims.finish(
        conn, claimed(conn), JobState.DELIVERED, [NewWrite(WriteOp.REMOVE_LABEL, {"label": "tireless"})]
    )
    assert enqueue(conn, [issue(1)]) == {1: Verdict.WRITE_WAITING}
    write = writes.take(conn, "p1")
    assert write is not None
    assert enqueue(conn, [issue(1)]) == {1: Verdict.WRITE_WAITING}
    writes.done(conn, write, "p1")
    assert enqueue(conn, [issue(1)]) == {1: Verdict.ENQUEUED}


@pytest.mark.parametrize(
    ("op", "verdict"),
    [(WriteOp.REMOVE_LABEL, Verdict.WRITE_REFUSED), (WriteOp.COMMENT, Verdict.ENQUEUED)],
)
def test_only_a_refused_removal_of_the_label_forbids(conn: Connection, op: WriteOp, verdict: Verdict) -> None:
    queued(conn, 1)
    claims.finish(conn, claimed(conn), JobState.DELIVERED, [NewWrite(op)])
    write = writes.take(conn, "p1")
    assert write is not None
    writes.refused(conn, write, "p1", "403")
    assert enqueue(conn, [issue(1)]) == {1: verdict}


def test_a_list_from_before_the_last_end_is_stale(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    clock_at(conn, NOON, seconds=10)
    claims.finish(conn, claimed(conn), JobState.DELIVERED, [])
    assert enqueue(conn, [issue(1)], listed_at=NOON + timedelta(seconds=9)) == {1: Verdict.STALE}
    assert enqueue(conn, [issue(1)], listed_at=NOON + timedelta(seconds=11)) == {1: Verdict.ENQUEUED}


def test_a_list_from_before_the_last_write_is_stale(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    claims.finish(conn, claimed(conn), JobState.DELIVERED, [NewWrite(WriteOp.REMOVE_LABEL)])
    clock_at(conn, NOON, seconds=60)
    write = writes.take(conn, "p1")
    assert write is not None
    writes.done(conn, write, "p1")
    assert enqueue(conn, [issue(1)], listed_at=NOON + timedelta(seconds=59)) == {1: Verdict.STALE}
    assert enqueue(conn, [issue(1)], listed_at=NOON + timedelta(seconds=61)) == {1: Verdict.ENQUEUED}


def test_a_survey_cools_down(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1, labels=["tireless/discover"])
    claims.finish(conn, claimed(conn), JobState.DELIVERED, [])
    clock_at(conn, NOON, seconds=99)
    assert enqueue(conn, [issue(1, "tireless/discover")], cooldown_seconds=100) == {1: Verdict.COOLING}
    assert enqueue(conn, [issue(1)], cooldown_seconds=100) == {1: Verdict.ENQUEUED}, "other work does not cool"


def test_a_survey_may_come_again_after_its_cooldown_or_a_failure(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1, 2, labels=["tireless/discover"])
    claims.finish(conn, claimed(conn), JobState.DELIVERED, [])
    claims.finish(conn, claimed(conn), JobState.FAILED, [])
    again = [issue(1, "tireless/discover"), issue(2, "tireless/discover")]
    clock_at(conn, NOON, seconds=50)
    assert enqueue(conn, again, cooldown_seconds=100) == {1: Verdict.COOLING, 2: Verdict.ENQUEUED}
    clock_at(conn, NOON, seconds=101)
    assert enqueue(conn, again, cooldown_seconds=100) == {1: Verdict.ENQUEUED, 2: Verdict.LIVE}


def test_last_finished_at_is_the_end_of_the_last_delivered_of_that_kind(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1, labels=["tireless/discover"])
    assert intake.last_finished_at(conn, issue(1).ref, JobKind.DISCOVER) is None
    claims.finish(conn, claimed(conn), JobState.DELIVERED, [])
    assert intake.last_finished_at(conn, issue(1).ref, JobKind.DISCOVER) == NOON
    assert intake.last_finished_at(conn, issue(1).ref, JobKind.PLAN) is None


def test_the_labels_decide_kind_and_lane(conn: Connection) -> None:
    enqueue(conn, [issue(1), issue(2, "tireless/plan", "tireless/implement"), issue(3, "tireless/agent:oc")])
    assert [(j.kind, j.lane) for j in (job_of(conn, n) for n in (1, 2, 3))] == [
        (JobKind.IMPLEMENT, CC),
        (JobKind.PLAN, CC),
        (JobKind.IMPLEMENT, OC),
    ]


def test_a_plans_child_knows_its_parent_and_takes_the_childrens_lane(conn: Connection) -> None:
    (plan,) = queued(conn, 1, labels=["tireless/plan"])
    writes.add_child(conn, plan.id, "a", issue(2).ref, "https://forge.test/2")
    writes.add_child(conn, plan.id, "a", issue(9).ref, "https://forge.test/9")  # told again: the first stays
    enqueue(conn, [issue(2), issue(3)], routing=RoutingTable(child=OC))
    child, stranger = job_of(conn, 2), job_of(conn, 3)
    assert (child.parent_job_id, child.lane) == (plan.id, OC)
    assert (stranger.parent_job_id, stranger.lane) == (None, CC)
    assert list(writes.children_of(conn, plan.id)) == ["a"]
    assert writes.children_of(conn, plan.id)["a"] == (issue(2).ref, "https://forge.test/2")


def test_a_sweep_of_a_repository_is_one_statement(conn: Connection) -> None:
    repo = track(conn)
    found = enqueue(conn, [issue(n) for n in range(1, 301)], repo)
    assert set(found.values()) == {Verdict.ENQUEUED}
    open_lanes(conn)
    assert claimed(conn).job.issue.number == 1
    assert event_kinds(conn, job_of(conn, 300)) == ["enqueued"]


def test_people_see_queued_from_the_transaction_that_queues(conn: Connection) -> None:
    payload = {"state": "queued"}
    enqueue(conn, [issue(1)], state_write=payload)
    enqueue(conn, [issue(1)], state_write=payload)
    (write,) = writes.of_job(conn, job_of(conn, 1).id)
    assert (write.op, write.payload, write.issue) == (WriteOp.STATE_LABEL, payload, issue(1).ref)


def test_enqueue_refuses_nothing_silently(conn: Connection) -> None:
    """Every issue that was passed in has a verdict."""
    asked = [issue(1), issue(2, is_open=False), issue(3, is_pull_request=True)]
    assert set(enqueue(conn, asked)) == {1, 2, 3}
    assert enqueue(conn, []) == {}


def test_a_swept_back_job_is_still_the_live_one(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    claimed(conn)
    clock_at(conn, NOON, seconds=601)
    sweep(conn)
    assert enqueue(conn, [issue(1)]) == {1: Verdict.LIVE}


def test_a_job_that_ends_while_its_issue_is_judged_is_not_followed_by_another(
    conn: Connection, database_url: str
) -> None:
    """The list still shows the label that this end is about to take off."""
    queued(conn, 1)
    claim = running(conn)
    with psycopg.connect(database_url) as ending:
        claims.transition(ending, claim, JobState.DELIVERED, phase=Phase.DONE)
        with psycopg.connect(database_url, autocommit=True) as rival, ThreadPoolExecutor(1) as thread:
            verdict = thread.submit(enqueue, rival, [issue(1)])
            wait_until(lambda: verdict.done() or waits(conn, rival), 10, "the rival has judged")
            ending.commit()
            assert verdict.result(10) == {1: Verdict.LIVE}
    assert len(jobs.find(conn, number=1)) == 1


def waits(conn: Connection, rival: Connection) -> bool:
    query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    return bool(scalar(conn, query, rival.info.backend_pid))


def test_the_history_of_an_issue_is_of_its_own_host(conn: Connection) -> None:
    elsewhere = RepoRef(REPO.forge, "other.test", REPO.owner, REPO.repo)
    here, there = track(conn), track(conn, elsewhere)
    queued(conn, 1, repo=here)
    queued(conn, 1, repo=there)
    for ref in (REPO, elsewhere):
        [job] = jobs.of_issue(conn, issue(1, repo=ref).ref)
        assert job.issue.host == ref.host
