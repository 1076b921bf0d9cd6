"""Keeping a claim: a thread beside the work that renews the lease, and knows how long it may be trusted.

    trusted      the last renewal that the database confirmed was *sent* less than lease - margin seconds ago,
                 on a clock that counts suspend too (CLOCK_BOOTTIME)
    unsure       it was sent longer ago: somebody else may have the job soon. The agent is killed now, while
                 the lease still holds; neither forge nor row is touched
    lost         a renewal matched no row: somebody else has the job, or it has ended
    cancelled    a renewal saw that the job is asked to stop

Time is counted from before a renewal is sent, so a slow answer shortens the trust and never lengthens it; the
database's clock decides when the lease ends, ours only gives up sooner. A wrong or stepping wall clock does not
matter here at all.

A drain is said with a renewal, at once, in the runner's own row: so all hosts see that this one drains, and since when.

A cancel is a notification and a column: the notification makes the keeper renew at once, and the renewal reads
the column. A lost notification costs at most one renewal interval. An outage is waited out with jittered tries;
it becomes `unsure` when the trust runs out, not before.
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
from collections.abc import Sequence

import psycopg

from tireless.config import Config
from tireless.entities import Claim
from tireless.store import claims, workers
from tireless.store.connection import is_outage
from tireless.store.listen import CANCEL_CHANNEL, Listener

log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0  # between tries while the database does not answer


def boot_clock() -> float:
    """Seconds since boot, suspend included; no one can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def patience(config: Config) -> float:
    """How long who holds a claim waits for one answer, in seconds: well below the margin, since until then it
    cannot see that the trust is over."""
    return min(10.0, config.lease.margin_seconds * 0.8)


def connect_patience(config: Config) -> float:
    """The same for a connection, which is waited for before an answer is: both together stay below the margin (for
    one of ten seconds and more; a driver waits two at least)."""
    return min(config.database.connect_timeout_seconds, config.lease.margin_seconds * 0.2)


class LeaseKeeper:
    """Renews one claim from its own thread and connection, from `start` to `stop`.

    `claimed_at` is boot_clock() from before the claim was sent.
    """

    def __init__(self, config: Config, url: str, claim: Claim, claimed_at: float) -> None:
        self._lease = config.lease
        self._claim = claim
        self._confirmed_at = claimed_at
        self._lost = threading.Event()
        self._cancel_reason: str | None = None
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stopped = False
        self._drain_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._draining = False
        self._drain_noticed = False  # by the thread, which has yet to act on it
        self._said_draining = False
        self._listener = Listener(
            url,
            (CANCEL_CHANNEL,),
            timeout=config.database.connect_timeout_seconds,
            wait=self._wait,
            name=workers.session_name(claim.worker, "lease"),
            patience=patience(config),
        )
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the claim stays as it is."""
        self._stopped = True
        os.write(self._stop_write, b"\0")
        self._thread.join()
        os.close(self._stop_read)
        os.close(self._stop_write)
        os.close(self._drain_event)

    def drain(self) -> None:
        """Say in the runner's row that it leaves after this job. Idempotent, and it waits for nothing."""
        if not self._draining:
            self._draining = True
            os.eventfd_write(self._drain_event, 1)

    @property
    def lost(self) -> bool:
        return self._lost.is_set()

    @property
    def trusted(self) -> bool:
        """Whether the claim is ours for sure, without asking."""
        return not self.lost and self.trust_left > 0

    @property
    def trust_left(self) -> float:
        """Seconds for which work may go on without another renewal."""
        return self._confirmed_at + self._lease.seconds - self._lease.margin_seconds - boot_clock()

    @property
    def cancel_reason(self) -> str | None:
        """Set once the job is asked to stop."""
        return self._cancel_reason

    def _wait(self, seconds: float, fds: Sequence[int]) -> Sequence[int]:
        own = (self._stop_read, self._drain_event)
        readable, _, _ = select.select([*own, *fds], [], [], max(seconds, 0))
        if self._drain_event in readable:
            os.eventfd_read(self._drain_event)
            self._drain_noticed = True
        return [fd for fd in readable if fd not in own]

    def _drain_asked(self) -> bool:
        """Once."""
        noticed, self._drain_noticed = self._drain_noticed, False
        return noticed

    def _run(self) -> None:
        try:
            self._keep()
        except Exception:
            # The claim is then no longer renewed: the trust runs out and the runner acts on that.
            log.exception("lease keeper ended job=%s", self._claim.job.id)
        finally:
            self._listener.close()

    def _keep(self) -> None:
        next_at = self._confirmed_at + self._lease.renew_seconds
        while not self._stopped and not self.lost:
            left = next_at - boot_clock()
            if left > 0 and not self._listener.wait(left) and not self._drain_asked():
                continue
            if self._stopped:
                return
            renewed = self._renew()
            # Jitter, so that the renewals of many runners do not stay in step after an outage.
            pause = self._lease.renew_seconds * random.uniform(0.9, 1.0) if renewed else _RETRY_SECONDS
            next_at = boot_clock() + pause

    def _renew(self) -> bool:
        sent_at = boot_clock()
        try:
            with self._listener.connection() as conn:
                renewal = claims.renew_claim(conn, self._claim, lease_seconds=self._lease.seconds)
                if self._draining and not self._said_draining:
                    workers.say_draining(conn, self._claim.worker)
                    self._said_draining = True
        except psycopg.Error as e:
            if not is_outage(e):
                raise
            return False
        if renewal is None:
            self._lost.set()
            return True
        self._confirmed_at = sent_at
        if renewal.cancel_requested and self._cancel_reason is None:
            self._cancel_reason = renewal.cancel_reason or "cancelled"
        return True
