"""When a child is started again: pure."""

from __future__ import annotations

from tireless.config import SupervisorConfig
from tireless.supervisor.restarts import Restarts

POLICY = SupervisorConfig(restart_delay_seconds=1, crash_loop_limit=5, healthy_seconds=60)


def test_delays_grow_to_a_minute() -> None:
    record = Restarts()
    assert [record.ended(0.1, False, POLICY) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_five_quick_deaths_in_a_row_trip() -> None:
    record = Restarts()
    for _ in range(4):
        record.ended(59, False, POLICY)
        assert not record.tripped(POLICY)
    record.ended(0, False, POLICY)
    assert record.tripped(POLICY)


def test_a_healthy_life_begins_the_count_again() -> None:
    record = Restarts()
    for _ in range(4):
        record.ended(0, False, POLICY)
    assert record.ended(60, False, POLICY) == 1
    assert record.ended(0, False, POLICY) == 1
    assert not record.tripped(POLICY)


def test_a_clean_leave_is_replaced_at_once_and_counts_for_nothing() -> None:
    record = Restarts()
    for _ in range(20):
        assert record.ended(2, True, POLICY) == 0
    assert not record.tripped(POLICY)


def test_a_clean_leave_at_a_mad_rate_is_a_crash_loop() -> None:
    record = Restarts()
    delays = [record.ended(0.01, True, POLICY) for _ in range(5)]
    assert delays == [1, 2, 4, 8, 16]
    assert record.tripped(POLICY)
