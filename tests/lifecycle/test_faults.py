"""FAULTS 15 to 20, with stub children: what the supervisor itself promises of each.

15 the supervisor killed, 16 a hang, 17 crash loops, 18 never ready, 19 many ends together, 20 reload.
"""

from __future__ import annotations

import os
import re
import signal
from itertools import pairwise
from pathlib import Path

from tests.lifecycle.conftest import Make
from tests.support.wait import wait_until
from tireless import proctree
from tireless.process import is_dead


def gone(pid: int) -> bool:
    return proctree.start_ticks(pid) is None


def zombies_of(parent: int) -> list[int]:
    found = []
    for pid in proctree.pids():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if stat[0] == "Z" and int(stat[1]) == parent:
            found.append(pid)
    return found


def test_fault_15_a_killed_supervisor_takes_its_children_along_and_the_next_one_clears_up(
    supervised: Make,
) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 1})
    s.behave(claude_code="agent", poller="stubborn", opencode="hang_in_main_loop")
    s.start_ready()
    helper = s.await_event("helper")["pid"]
    agent = s.await_event("agent")["pid"]
    children = [s.pid_of(who) for who in ("poller", "claude_code", "opencode")]
    worker = s.events("start", who="claude_code")[0]["worker"]

    s.send(signal.SIGKILL)
    wait_until(lambda: all(gone(pid) for pid in children), 5, "children of a killed supervisor end")
    assert is_dead(worker, "here") is True

    # Stub agents have no guard; what a guard did not end, the next supervisor ends before it adopts claims.
    assert not gone(helper)
    s.behave()
    s.start()
    second = s.await_event("prepare", count=2)
    assert gone(helper)
    assert gone(agent)
    s.await_log("ending what a dead supervisor's agents left running count=2")
    assert second["at"] > s.await_event("prepare")["at"]
    s.await_log("ready: ", count=2)


def test_fault_15_leftovers_of_another_state_directory_are_let_be(supervised: Make) -> None:
    other = supervised("other", runners={"claude_code": 1})
    other.behave(claude_code="agent")
    other.start_ready()
    helper = other.await_event("helper")["pid"]
    supervised("one").start_ready()
    assert not gone(helper)


def test_fault_16_a_hang_is_found_by_the_missing_beat_and_dumped_and_replaced(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 1}, beat_seconds=2)
    s.behave(claude_code="hang_in_main_loop")
    s.start_ready()
    first = s.pid_of("claude_code")
    other = s.pid_of("opencode")
    s.behave()
    s.await_log("runner claude_code 0 hangs and is killed: no beat for 2 s")
    s.await_event("start", who="claude_code", count=2)
    assert gone(first)
    log = s.log()
    assert "Fatal Python error: Aborted" in log
    assert "hang_in_main_loop" in log  # where it hung
    assert "no beat for 2 s (killed by SIGABRT)" in s.await_event("release")["why"]
    assert s.pid_of("opencode") == other  # it sleeps for a minute at a time, and beats


def test_fault_16_a_hang_that_abort_does_not_end_is_killed(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 0}, beat_seconds=2)
    s.behave(claude_code="hang_deaf")
    s.start_ready()
    s.behave()
    assert "no beat for 2 s (killed by SIGKILL)" in s.await_event("release")["why"]
    s.await_event("start", who="claude_code", count=2)


def test_fault_16_a_poller_that_hangs_is_replaced_too(supervised: Make) -> None:
    s = supervised(beat_seconds=2)
    s.behave(poller="hang_in_main_loop")
    s.start_ready()
    s.behave()
    s.await_event("start", who="poller", count=2)


def test_a_supervisor_that_was_stopped_itself_counts_that_time_against_nobody(supervised: Make) -> None:
    s = supervised(beat_seconds=3)
    s.start_ready()
    children = [s.pid_of(who) for who in ("poller", "claude_code", "opencode")]
    # A suspended machine, as far as a clock that goes on can tell. The children first, so that no beat is left
    # unread in a pipe, and last to go on, so that the supervisor judges before it hears.
    stop_all(children)
    wait_seconds(1.2)
    stop_all([s.pid])
    wait_seconds(7)
    os.kill(s.pid, signal.SIGCONT)
    s.await_log("the supervisor did not run for")
    for pid in children:
        os.kill(pid, signal.SIGCONT)
    wait_seconds(2)
    assert not s.log_lines("hangs and is killed")
    assert [s.pid_of(who) for who in ("poller", "claude_code", "opencode")] == children


def stop_all(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all("T" in status(pid) for pid in pids), 5, "all stopped")


def status(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_seconds(seconds: float) -> None:
    """For time that must pass with nothing happening in it."""
    import time

    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 5, "time")


def test_fault_17_a_crash_looping_lane_trips_after_five_and_the_other_lane_works_on(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 1}, restart_delay_seconds=0.1)
    s.behave(claude_code="crash")
    s.start()
    other = s.pid_of("opencode")
    s.await_log("lane claude_code tripped: 5 quick deaths in a row, the last: exit code 3; HUP tries again")
    starts = [e["at"] for e in s.events("start", who="claude_code")]
    gaps = [b - a for a, b in pairwise(starts)]
    assert len(starts) == 5
    assert all(later > earlier for earlier, later in pairwise(gaps)), gaps
    s.send(signal.SIGUSR1)
    s.await_log("status: running; poller 1/1, claude_code 0/1 tripped, opencode 1/1")
    s.await_log("status: runner opencode 0 is ready")
    assert s.pid_of("opencode") == other
    assert len(s.events("start", who="claude_code")) == 5
    assert len(s.log_lines("ERROR")) == 1

    s.behave()
    all_ready = "ready: poller 1/1, claude_code 1/1, opencode 1/1"
    before = len(s.log_lines(all_ready))  # one of those that crashed may have been seen in between
    s.send(signal.SIGHUP)
    s.await_event("start", who="claude_code", count=6)
    s.await_log(all_ready, count=before + 1)


def test_fault_20_a_reload_that_asks_for_more_beats_kills_nobody(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 1}, beat_seconds=120)
    s.start_ready()
    before = [s.pid_of(who) for who in ("poller", "claude_code", "opencode")]
    wait_seconds(3)
    s.settings["beat_seconds"] = 2
    s.write_config()
    s.send(signal.SIGHUP)
    s.await_log("configuration read again")
    wait_seconds(3)
    assert not s.log_lines("hangs and is killed")
    assert [s.pid_of(who) for who in ("poller", "claude_code", "opencode")] == before


def test_fault_17_a_lane_that_never_comes_up_does_not_keep_the_others_from_being_ready(
    supervised: Make,
) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 1}, restart_delay_seconds=0.01)
    s.behave(claude_code="fail")
    s.start()
    s.await_log("ready: poller 1/1, claude_code 0/1 tripped, opencode 1/1")
    assert len(s.log_lines("ready: ")) == 1
    # An error that nobody expected is one line too, traceback and all.
    assert len(s.log_lines("first-line | second line")) == 5


def test_fault_17_a_lane_with_a_runner_that_lives_well_does_not_trip(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 2, "opencode": 0}, healthy_seconds=0.5, restart_delay_seconds=0.01)
    s.behave(claude_code="work")
    s.start_ready()
    wait_seconds(0.6)  # healthy by now
    s.behave(claude_code="crash")
    os.kill(s.pid_of("claude_code", 1), signal.SIGKILL)
    s.await_event("start", who="claude_code", index=1, count=8)
    assert not s.log_lines("tripped: ")


def test_fault_17_a_crash_looping_poller_ends_the_supervisor_with_70(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 1})
    s.behave(poller="crash", claude_code="busy")
    s.start()
    s.await_log("the poller crash-loops: 5 quick deaths in a row, the last: exit code 3")
    assert len(s.events("start", who="poller")) == 5
    s.await_event("leave", who="opencode")
    s.go()  # an agent that runs is paid for: it may end its work
    assert s.exit_code() == 70
    assert s.events("leave", who="claude_code", draining=True, stopping=False)
    assert s.alive() == []


def test_fault_18_a_child_that_stalls_before_it_is_ready_is_killed_and_replaced(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 1}, ready_seconds=1)
    s.behave(claude_code="never_ready")
    s.start()
    first = s.pid_of("claude_code")
    s.behave()
    s.await_log("runner claude_code 0 hangs and is killed: not ready within 1 s")
    s.await_event("start", who="claude_code", count=2)
    assert gone(first)
    assert "not ready within 1 s (killed by SIGKILL)" in s.await_event("release")["why"]
    s.await_log("ready: ")


def test_fault_19_sixty_children_end_together_and_leave_no_zombie(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 30, "opencode": 30}, restart_delay_seconds=0.05)
    s.behave(claude_code="crash_when_told", opencode="crash_when_told")
    s.start()
    s.await_log("ready: ", timeout=40)
    children = {e["pid"] for e in s.events("start") if e["who"] != "poller"}
    assert len(children) == 60
    s.behave()
    s.go()
    wait_until(lambda: all(gone(pid) for pid in children), 10, "sixty ends")
    wait_until(lambda: not (set(zombies_of(s.pid)) & children), 2, "no zombie two seconds later")
    s.await_event("start", count=61 + 60, timeout=60)
    released = {e["worker"] for e in s.events("release")}
    assert len(released) == 60
    assert not s.log_lines("tripped: ")


def test_fault_20_a_good_reload_fits_the_runners_and_keeps_the_pids(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 2, "opencode": 1})
    s.start_ready()
    poller, kept, extra = s.pid_of("poller"), s.pid_of("claude_code", 0), s.pid_of("claude_code", 1)
    s.runners = {"claude_code": 1, "opencode": 3}
    s.caps = {"claude_code": 7}
    s.log_level = "debug"
    s.write_config()
    s.send(signal.SIGHUP)
    s.await_event("start", who="opencode", index=2, log_level="debug")
    lanes = s.await_event("apply_lanes")
    assert lanes["before"] == {"claude_code": 2, "opencode": 2}
    assert lanes["now"] == {"claude_code": 7, "opencode": 2}
    s.await_event("leave", who="claude_code", index=1, draining=True, stopping=False)
    wait_until(lambda: gone(extra), 5, "the surplus runner leaves")
    for who in ("poller", "claude_code", "opencode"):
        s.await_event("reloaded", who=who, log_level="debug")
    s.await_log("ready: poller 1/1, claude_code 1/1, opencode 3/3")
    assert (s.pid_of("poller"), s.pid_of("claude_code", 0)) == (poller, kept)
    assert len(s.events("start", who="claude_code")) == 2


def test_fault_20_a_surplus_runner_finishes_what_it_has(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 2, "opencode": 0})
    s.behave(claude_code="busy")
    s.start_ready()
    surplus = s.pid_of("claude_code", 1)
    s.runners = {"claude_code": 1, "opencode": 0}
    s.write_config()
    s.send(signal.SIGHUP)
    s.await_event("apply_lanes")
    s.runners = {"claude_code": 2, "opencode": 0}  # and back, while it still works: a third one is started
    s.write_config()
    s.send(signal.SIGHUP)
    s.await_event("start", who="claude_code", index=2)
    assert not gone(surplus)
    s.go()
    s.await_event("leave", who="claude_code", index=1, stopping=False)


def test_fault_20_a_bad_reload_changes_nothing_and_says_why_in_one_line(supervised: Make) -> None:
    s = supervised()
    s.start_ready()
    before = [s.pid_of(who) for who in ("poller", "claude_code", "opencode")]
    good = s.config.read_text().replace("runners = 1", "runners = -4")
    s.config.write_text("colour = 1\n" + good)
    s.send(signal.SIGHUP)
    line = s.await_log("configuration refused, the old one stays: ")
    assert "unknown key colour" in line
    assert line.count(str(s.config)) == 1
    assert " | lane.claude_code.runners is -4" in line
    s.send(signal.SIGUSR1)
    s.await_log("status: runner opencode 0 is ready")
    assert [s.pid_of(who) for who in ("poller", "claude_code", "opencode")] == before
    assert len(s.log_lines("ERROR")) == 1
    assert not s.events("apply_lanes")


def test_fault_20_what_only_a_restart_can_change_is_refused(supervised: Make) -> None:
    s = supervised()
    s.start_ready()
    s.config.write_text(re.sub('host = "here"', 'host = "there"', s.config.read_text()))
    s.send(signal.SIGHUP)
    assert "host has changed, which takes a restart" in s.await_log("configuration refused")


def test_fault_20_lanes_that_could_not_be_written_are_not_lost_in_the_next_reload(supervised: Make) -> None:
    s = supervised()
    s.behave(apply_lanes="fail")
    s.start_ready()
    s.caps = {"claude_code": 5}
    s.write_config()
    s.send(signal.SIGHUP)
    s.await_event("apply_lanes", what="fail")
    s.caps = {"claude_code": 5, "opencode": 6}
    s.write_config()
    s.send(signal.SIGHUP)
    s.await_log("configuration read again", count=2)
    s.behave()
    last = s.await_event("apply_lanes", what="ok", now={"claude_code": 5, "opencode": 6})
    earlier = s.events("apply_lanes", what="ok")[0]
    # Either the first difference went through by itself, or the last one holds it too.
    assert last["before"]["claude_code"] == 2 or earlier["now"]["claude_code"] == 5
