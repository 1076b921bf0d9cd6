"""Keeping a claim (tireless/lease.py): each sentence of its protocol against a real database."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.proxy import Proxy
from tests.support.store import no_writes, queued, release, running
from tests.support.wait import wait_until
from tireless.config import Config, DatabaseConfig, LeaseConfig
from tireless.entities import Claim, WorkerRole
from tireless.lease import LeaseKeeper, boot_clock, connect_patience, patience
from tireless.store import jobs, workers
from tireless.store.queries import Connection

SLOW = LeaseConfig(seconds=600, renew_seconds=500, margin_seconds=50)
QUICK = LeaseConfig(seconds=600, renew_seconds=0.2, margin_seconds=50)


@contextmanager
def keeping(
    url: str, claim: Claim, lease: LeaseConfig, claimed_at: float | None = None
) -> Iterator[LeaseKeeper]:
    config = dataclasses.replace(Config(), lease=lease)
    keeper = LeaseKeeper(config, url, claim, boot_clock() if claimed_at is None else claimed_at)
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.stop()


@pytest.fixture
def claim(conn: Connection) -> Claim:
    queued(conn, 1)
    return running(conn)


def expiry(conn: Connection, claim: Claim) -> float:
    job = jobs.get(conn, claim.job.id)
    assert job is not None
    assert job.claim_expires_at is not None
    return job.claim_expires_at.timestamp()


def test_it_renews_and_trusts_from_before_the_renewal_was_sent(
    conn: Connection, database_url: str, claim: Claim
) -> None:
    first = expiry(conn, claim)
    with keeping(database_url, claim, QUICK) as keeper:
        wait_until(lambda: expiry(conn, claim) > first, 10, "a renewal")
        assert keeper.trusted
        assert 500 < keeper.trust_left <= 550


def test_a_lease_that_another_has_taken_is_lost_at_the_next_renewal(
    conn: Connection, database_url: str, claim: Claim
) -> None:
    with keeping(database_url, claim, QUICK) as keeper:
        release(conn, claim.worker)
        wait_until(lambda: keeper.lost, 10, "the loss is seen")
        assert not keeper.trusted


def test_a_cancel_is_seen_by_its_notification_long_before_the_next_renewal(
    conn: Connection, database_url: str, claim: Claim
) -> None:
    first = expiry(conn, claim)
    with keeping(database_url, claim, SLOW) as keeper:
        wait_until(
            lambda: expiry(conn, claim) > first, 10, "it listens: a new connection is followed by a look"
        )
        jobs.cancel(conn, [claim.job.id], "not today", writes_for=no_writes, actor="test")
        assert wait_until(lambda: keeper.cancel_reason, 10, "the cancel is seen") == "not today"
        assert keeper.trusted


def test_a_cancel_whose_notification_is_lost_is_seen_at_the_next_renewal(
    conn: Connection, database_url: str, claim: Claim
) -> None:
    with keeping(database_url, claim, QUICK) as keeper:
        conn.execute("update job set cancel_requested_at = now(), cancel_reason = 'quietly'")
        assert wait_until(lambda: keeper.cancel_reason, 10, "the cancel is seen") == "quietly"


def test_without_the_database_the_trust_runs_out_before_the_lease_and_comes_back_with_it(
    conn: Connection, database_url: str, claim: Claim
) -> None:
    lease = LeaseConfig(seconds=600, renew_seconds=0.2, margin_seconds=100)
    proxy = Proxy(database_url)
    try:
        with keeping(proxy.url, claim, lease) as keeper:
            wait_until(lambda: keeper.trust_left > 499, 10, "a renewal")
            proxy.down()
            before = keeper.trust_left
            wait_until(lambda: keeper.trust_left < before - 1, 10, "the trust shrinks")
            assert keeper.trusted
            assert not keeper.lost  # an outage is no loss
            proxy.up()
            wait_until(lambda: keeper.trust_left > before, 60, "renewed again")
    finally:
        proxy.close()


def drains(conn: Connection, claim: Claim) -> bool:
    return any(w.id == claim.worker and w.draining_since is not None for w in workers.of_host(conn))


def test_a_drain_is_said_at_once_and_through_an_outage(
    conn: Connection, database_url: str, claim: Claim
) -> None:
    workers.register(conn, claim.worker, "here", WorkerRole.RUNNER, claim.job.lane, 1)
    with keeping(database_url, claim, SLOW) as keeper:
        keeper.drain()
        keeper.drain()
        wait_until(lambda: drains(conn, claim), 10, "long before the next renewal")
    conn.execute("update worker set draining_since = null")
    proxy = Proxy(database_url)
    try:
        first = expiry(conn, claim)
        with keeping(proxy.url, claim, SLOW) as keeper:
            wait_until(lambda: expiry(conn, claim) > first, 10, "it listens")
            proxy.down()
            keeper.drain()
            assert not drains(conn, claim)
            proxy.up()
            wait_until(lambda: drains(conn, claim), 60, "said once the database is back")
            assert keeper.trusted
    finally:
        proxy.close()


def test_trust_is_counted_from_the_claim_that_was_sent_not_from_the_first_renewal(
    database_url: str, claim: Claim
) -> None:
    with keeping(database_url, claim, SLOW, claimed_at=boot_clock() - 551) as keeper:
        # 551 s ago: the margin of 50 is all that is left of the lease, so nothing may go on until it is renewed.
        wait_until(lambda: keeper.trusted, 10, "the overdue renewal")
    late = LeaseKeeper(dataclasses.replace(Config(), lease=SLOW), database_url, claim, boot_clock() - 551)
    assert not late.trusted


@pytest.mark.parametrize("margin", [10.0, 30.0, 60.0, 300.0])
@pytest.mark.parametrize("connect_timeout", [2, 5, 60])
def test_who_waits_for_the_database_is_back_before_the_margin_is_over(
    margin: float, connect_timeout: int
) -> None:
    config = Config(
        lease=LeaseConfig(seconds=900.0, renew_seconds=60.0, margin_seconds=margin),
        database=DatabaseConfig(connect_timeout_seconds=connect_timeout),
    )
    assert patience(config) + connect_patience(config) <= margin
