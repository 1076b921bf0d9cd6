"""What a poller has to do next: one statement a look, so that an idle tireless is nearly silent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tireless.store.claims import WORDS_KNOWN
from tireless.store.queries import Connection, row


@dataclass(frozen=True, slots=True)
class Agenda:
    """`at` is the database's time of the look (UTC). Then seconds from there until the next backoff of a job ends, the
    next poll and forge write are due, the next lease and hold of a lane end: negative if it is over, None if there is
    none. `held`: some lane is held."""

    at: datetime
    job: float | None
    poll: float | None
    write: float | None
    lease: float | None
    hold: float | None
    held: bool

    @property
    def first(self) -> float:
        """Seconds until the first of them; infinite if there is nothing."""
        known = (self.job, self.poll, self.write, self.lease, self.hold)
        return min((seconds for seconds in known if seconds is not None), default=float("inf"))


def look(conn: Connection, since: datetime | None = None, *, pulse: bool = False) -> Agenda:
    """Also wakes the runners of lanes in which a backoff has ended after `since`, or ever, and sends the listeners'
    pulse if that is wanted (store/listen.py)."""
    found = row(conn, "agenda", {"since": since, "pulse": pulse, **WORDS_KNOWN})
    assert found is not None
    return Agenda(**found)
