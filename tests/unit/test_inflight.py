"""How many polls a host may have: one that hangs stands in nobody's way."""

from __future__ import annotations

from tireless.inflight import SLOW_SECONDS, InFlight

GOOD, DEAD, OTHER = ("gitea", "good"), ("gitea", "dead"), ("github", "other")


def test_an_unknown_host_may_have_two_and_one_that_answers_its_share() -> None:
    flying = InFlight(16, 8)
    assert flying.per_unknown_host == 2
    flying.begin(GOOD)
    assert flying.places() == {GOOD: 1}
    flying.ended(GOOD, 0.1, answered=True)
    flying.done(GOOD)
    assert flying.places() == {GOOD: 8}
    assert flying.free == 16


def test_silence_and_slowness_leave_one_until_the_next_quick_answer() -> None:
    flying = InFlight(16, 8)
    for seconds, answered, places in (
        (30.0, False, 1),
        (0.1, True, 8),
        (SLOW_SECONDS + 1, True, 1),
        (0.1, True, 8),
    ):
        flying.begin(DEAD)
        flying.ended(DEAD, seconds, answered=answered)
        flying.done(DEAD)
        assert flying.places() == {DEAD: places}


def test_however_many_are_dead_half_of_the_threads_are_for_the_others() -> None:
    flying = InFlight(8, 4)
    dead = [("gitea", f"dead{n}") for n in range(10)]
    for host in dead:
        flying.ended(host, 30.0, answered=False)
    flying.ended(GOOD, 0.1, answered=True)
    begun = []
    while True:
        places = flying.places()
        assert places[GOOD] == 4
        waiting = [host for host in dead if places[host]]
        if not waiting:
            break
        flying.begin(waiting[0])
        begun.append(waiting[0])
    assert len(begun) == 4
    assert sum(flying.places()[host] for host in dead) == 0
    for host in begun:  # those that waited are next
        flying.done(host)
    assert [host for host in dead if flying.places()[host]] == dead[4:8]


def test_places_never_go_below_none() -> None:
    flying = InFlight(4, 4)
    for _ in range(4):
        flying.begin(GOOD)
    flying.ended(GOOD, 9.0, answered=False)
    assert flying.places() == {GOOD: 0}
    assert flying.free == 0
