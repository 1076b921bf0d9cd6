"""lane: what an operator writes is in the row, and the claim obeys it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.ctl.conftest import Ctl
from tests.support.store import CC, OC, claim, queued, running, spend
from tireless.entities import WorkerRole
from tireless.store import lanes, workers
from tireless.store.queries import Connection

LANE_KEYS = {
    "lane", "cap", "running", "pending", "paused", "pause_reason", "held", "held_until", "hold_reason",
    "probing", "daily_usd", "daily_jobs", "spent_today", "runners",
}  # fmt: skip


def test_list_counts_what_runs_and_waits(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1, 2)
    running(conn)
    documents = ctl("lane", "list", "--json").ok().json
    assert [set(d) for d in documents] == [LANE_KEYS, LANE_KEYS]
    assert {k: documents[0][k] for k in ("lane", "cap", "running", "pending")} == {
        "lane": "claude_code",
        "cap": 4,
        "running": 1,
        "pending": 1,
    }
    there = "there/boot/1/2/3"
    workers.register(conn, there, "there", WorkerRole.RUNNER, CC, 2)
    lines = ctl("lane", "list").ok().out.splitlines()
    assert lines[1].split() == ["claude_code", "1/4", "1", "0.00", "USD,", "0", "jobs", "open", "-"]


def test_a_lane_without_a_living_runner_is_not_open(ctl: Ctl, conn: Connection) -> None:
    workers.register(conn, "there/boot/1/2/3", "there", WorkerRole.RUNNER, CC, 2)
    for command in (["lane", "list"], ["status"]):
        lines = ctl(*command).ok().out.splitlines()
        assert ["open" in lines[1], "no runner" in lines[2]] == [True, True]
    assert [d["runners"] for d in ctl("lane", "list", "--json").ok().json] == [1, 0]
    conn.execute("update worker set seen_at = now() - interval '4 minutes'")
    assert "no runner" in ctl("lane", "list").ok().out.splitlines()[1]


def shown(ctl: Ctl, *command: str) -> list[tuple[str, str]]:
    """State and reason of each lane, as a command's table has them."""
    lines = ctl(*command).ok().out.splitlines()
    state, why = lines[0].index("STATE"), lines[0].index("WHY")
    return [(line[state:why].strip(), line[why:]) for line in lines[1:3]]


def test_a_lane_that_starts_nothing_says_why(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1)
    nobody = ("no runner", "no runner is alive on any host; start tireless-supervisor")
    for command in (["lane", "list"], ["status"]):
        assert shown(ctl, *command) == [nobody, nobody]
    there = "there/boot/1/2/3"
    workers.register(conn, there, "there", WorkerRole.RUNNER, CC, 2)
    ctl.write("[lane.opencode]\nenabled = false")
    off = f"not enabled in {ctl.path} of this host, and no runner of it is alive on another"
    assert shown(ctl, "lane", "list") == [("open", "-"), ("no runner", off)]
    workers.register(conn, there, "there", WorkerRole.RUNNER, CC, 2, waits_for="claude is not on PATH")
    missing = "no runner can start its agent: on there claude is not on PATH"
    for command in (["lane", "list"], ["status"]):
        assert shown(ctl, *command) == [("no runner", missing), ("no runner", off)]


def test_a_lane_whose_runners_drain_says_so(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1, 2)
    there = "there/boot/1/2/3"
    workers.register(conn, there, "there", WorkerRole.RUNNER, CC, 2)
    running(conn, there)
    workers.say_draining(conn, there)
    lanes.set_cap(conn, CC, 1)  # full as well
    for command in (["lane", "list"], ["status"]):
        state, why = shown(ctl, *command)[0]
        assert state == "draining"
        assert why == (
            "every runner drains (on there): it finishes what it has, takes nothing new and leaves; nothing starts "
            "until tireless-supervisor is started again"
        )
    assert ctl("lane", "list", "--json").ok().json[0]["runners"] == 0


def test_a_lane_with_a_cap_of_nothing_is_closed(ctl: Ctl, conn: Connection) -> None:
    workers.register(conn, "there/boot/1/2/3", "there", WorkerRole.RUNNER, CC, 2)
    ctl("lane", "cap", "cc", "0").ok()
    for command in (["lane", "list"], ["status"]):
        assert shown(ctl, *command)[0] == ("closed", "its cap is 0")


def test_cap_is_exact_at_once(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1, 2)
    running(conn)
    assert ctl("lane", "cap", "cc", "1", "--json").ok().json["cap"] == 1
    assert claim(conn, "w2") is None
    ctl("lane", "cap", "claude_code", "2").ok()
    assert claim(conn, "w2") is not None
    assert "what is above it runs to its end" in ctl("lane", "cap", "cc", "0").ok().out


def test_pause_and_resume(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1)
    document = ctl("lane", "pause", "cc", "--reason", "invoice first", "--json").ok().json
    assert (document["paused"], document["pause_reason"]) == (True, "invoice first")
    assert claim(conn) is None
    assert "invoice first" in ctl("lane", "list").ok().out
    assert ctl("lane", "resume", "cc").ok().out == "claude_code: resumed\n"
    assert claim(conn) is not None
    assert "was neither paused nor held" in ctl("lane", "resume", "cc").ok().out


def test_pausing_again_without_a_reason_keeps_the_one_there(ctl: Ctl) -> None:
    def why(*more: str) -> str:
        found: str = ctl("lane", "pause", "cc", *more, "--json").ok().json["pause_reason"]
        return found

    assert why() == "paused by an operator"
    assert why("--reason", "invoice first") == "invoice first"
    assert why() == "invoice first"
    assert why("--reason", "holidays") == "holidays"


def test_a_budget_is_set_shown_and_taken_away(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1)
    spend(conn, running(conn), 1.25)
    document = ctl("lane", "budget", "cc", "--usd", "5", "--jobs", "2", "--json").ok().json
    assert (document["daily_usd"], document["daily_jobs"]) == (5.0, 2)
    assert document["spent_today"] == {"usd": 1.25, "jobs": 1}
    assert ctl("lane", "budget", "cc").ok().out == "claude_code: 1.25/5.00 USD, 1/2 jobs today\n"
    assert "1.25/5.00 USD, 1/2 jobs" in ctl("lane", "list").ok().out
    assert "1.25/5.00 USD, 1/2 jobs" in ctl("status").ok().out
    document = ctl("lane", "budget", "cc", "--usd", "none", "--json").ok().json
    assert (document["daily_usd"], document["daily_jobs"]) == (None, 2)
    answer = ctl("lane", "budget", "cc", "--jobs", "none").ok().out
    assert answer == "claude_code: 1.25 USD, 1 job today, without a limit\n"


def test_a_changed_budget_holds_the_lane_and_lets_it_go(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1, 2)
    spend(conn, running(conn), 1.25)
    answer = ctl("lane", "budget", "cc", "--jobs", "1").ok().out
    assert "held: the lane's budget of 1 jobs a day is used up (until" in answer
    assert "tireless-ctl lane resume claude_code ends that" in answer
    assert claim(conn) is None
    assert ctl("lane", "budget", "cc", "--jobs", "9").ok().out.endswith("1/9 jobs today; no longer held\n")
    assert claim(conn) is not None


def test_a_raised_budget_says_what_still_holds_the_lane(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1)
    spend(conn, running(conn), 1.25)
    ctl("lane", "budget", "cc", "--jobs", "1").ok()
    lanes.hold(conn, CC, "usage limit", seconds=60)
    answer = ctl("lane", "budget", "cc", "--jobs", "9").ok().out
    assert "held: usage limit (until" in answer
    assert "tireless-ctl lane resume claude_code ends that" in answer


def test_a_lane_that_probes_says_so(ctl: Ctl, conn: Connection) -> None:
    lanes.hold(conn, CC, "usage limit", seconds=60, probe=True)
    conn.execute("update lane set held_until = now() where hold_reason is not null")
    lanes.lift_ended_holds(conn)
    workers.register(conn, "there/boot/1/2/3", "there", WorkerRole.RUNNER, CC, 2)
    assert ctl("lane", "list", "--json").ok().json[0]["probing"] is True
    assert "probing    after a usage limit one job goes first" in ctl("lane", "list").ok().out


def test_hold_for_a_while_and_until_a_moment(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1)
    before = datetime.now(UTC)
    document = ctl("lane", "hold", "cc", "--for", "2h", "--json").ok().json
    until = datetime.fromisoformat(document["held_until"])
    assert timedelta(hours=2) <= until - before < timedelta(hours=2, seconds=30)
    assert claim(conn) is None
    later = "2199-01-01T00:00:00+02:00"
    document = ctl("lane", "hold", "cc", "--until", later, "--reason", "sabbatical", "--json").ok().json
    assert (document["held_until"], document["hold_reason"]) == ("2198-12-31T22:00:00Z", "sabbatical")


def test_a_hold_without_an_end_is_not_shortened(ctl: Ctl, conn: Connection) -> None:
    lanes.hold(conn, OC, "not logged in")
    answer = ctl("lane", "hold", "oc", "--for", "5m").ok()
    assert "held already, until tireless-ctl lane resume opencode (not logged in)" in answer.out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["cap", "cursor", "1"], "no lane 'cursor'; there is claude_code (cc) and opencode (oc)"),
        (["cap", "cc", "-1"], "-1"),
        (["cap", "cc", "1001"], "no number between 0 and 1000"),
        (["hold", "cc"], "one of the arguments --for --until is required"),
        (["hold", "cc", "--for", "2w"], "no length of time"),
        (["hold", "cc", "--until", "soon"], "no time such as"),
        (["budget", "cc", "--usd", "0"], "neither `none` nor an amount of US dollars"),
        (["budget", "cc", "--usd", "1e9"], "neither `none` nor an amount of US dollars"),
        (["budget", "cc", "--jobs", "-1"], "--jobs"),
        (["budget", "cc", "--jobs", "1.5"], "neither `none` nor a number of jobs"),
        ([], "COMMAND"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(ctl: Ctl, argv: list[str], says: str) -> None:
    answer = ctl("lane", *argv)
    assert answer.code == 64
    assert says in answer.err


def test_a_lane_without_a_row_says_what_makes_one(tmp_path: Path, database_url: str, conn: Connection) -> None:
    ctl = Ctl(tmp_path, database_url)
    for argv in (
        ["cap", "oc", "1"],
        ["pause", "oc"],
        ["resume", "oc"],
        ["hold", "oc", "--for", "1h"],
        ["budget", "oc"],
    ):
        answer = ctl("lane", *argv)
        assert answer.code == 1
        assert "has no row yet; start a supervisor or run tireless-ctl migrate" in answer.err
    assert "no lane yet" in ctl("lane", "list").ok().out
    ctl("migrate").ok()
    assert [(d["lane"], d["cap"]) for d in ctl("lane", "list", "--json").ok().json] == [(CC, 2), (OC, 2)]
