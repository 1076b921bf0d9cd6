"""How the row is left when the work ends before its time (runner.py lists the ends). Whatever happens here, the
lease gets the job back in the end."""

from __future__ import annotations

import logging

from tireless import delivery, governor
from tireless.delivery import Ending
from tireless.entities import ClaimLost, EventKind, IllegalTransition, Job, JobState, TirelessError
from tireless.redact import Redactor
from tireless.store import claims, jobs, refusals
from tireless.store.queries import Connection
from tireless.who import Judgement
from tireless.work.in_hand import InHand
from tireless.work.leaving import (
    CancelAsked,
    ClaimGone,
    Leave,
    NotEntitled,
    Passing,
    Requeued,
    Stopped,
    Unsure,
    Withdrawn,
)
from tireless.work.subject import Subject

log = logging.getLogger(__name__)


class Ends:
    """Leaves the row of the job in hand as the reason demands."""

    def __init__(self, hand: InHand, subject: Subject, redactor: Redactor) -> None:
        self._hand = hand
        self._config = hand.config
        self._subject = subject
        self._redactor = redactor

    def leave(self, why: Exception) -> None:
        job = self._hand.job
        level = logging.WARNING if isinstance(why, Passing) else logging.INFO  # somebody may have to mend it
        log.log(level, "leaving job=%s end=%s why=%s", job.id, type(why).__name__, why)
        try:
            self._as_demanded(why)
        except (ClaimLost, IllegalTransition) as e:
            self._note_lost(str(e))
        except Leave as e:
            log.warning("left to the lease job=%s why=%s", job.id, e)
        except Exception:
            log.exception("left to the lease job=%s", job.id)

    def _as_demanded(self, why: Exception) -> None:
        if isinstance(why, ClaimGone):
            self._note_lost(str(why))
        elif isinstance(why, Unsure):
            self._hand.db_at_last(lambda c: self._to_pending(c, str(why)))
        elif isinstance(why, CancelAsked):
            self._abandon(why.why, withdrawn=why.why.startswith(delivery.WITHDRAWN))
        elif isinstance(why, Withdrawn):
            self._abandon(why.why, withdrawn=True)
        elif isinstance(why, NotEntitled):
            self._decline(why.judgement)
        elif isinstance(why, Stopped):
            self._hand.db(lambda c: self._to_pending(c, str(why)))
        elif isinstance(why, Passing):
            self._hand.db(lambda c: self._to_pending(c, str(why), delay=why.seconds))
        elif not isinstance(why, Requeued):
            self._fault(why)

    def _note_lost(self, why: str) -> None:
        job_id, claim = self._hand.job.id, self._hand.claim
        log.error("claim lost job=%s seq=%d why=%s", job_id, claim.seq, why)
        detail = {"seq": claim.seq, "why": why}
        self._hand.db_at_last(lambda c: jobs.add_event(c, job_id, EventKind.CLAIM_LOST, claim.worker, detail))

    def _to_pending(self, conn: Connection, why: str, *, keep_attempt: bool = True, delay: float = 0.0) -> None:
        claims.transition(
            conn,
            self._hand.claim,
            JobState.PENDING,
            error=why,
            keep_attempt=keep_attempt,
            delay_seconds=delay,
            writes_for=delivery.writes_for_end(self._config),
        )

    def _abandon(self, reason: str, *, withdrawn: bool) -> None:
        compose = delivery.writes_for_withdrawal if withdrawn else delivery.writes_for_cancel
        hand = self._hand
        new = compose(self._config, hand.job, reason)
        hand.job = hand.db(lambda c: claims.finish(c, hand.claim, JobState.ABANDONED, new, error=reason))
        self._subject.tell()

    def _decline(self, judgement: Judgement) -> None:
        """End the job without an agent run, and remember the label that was not good enough."""
        hand, labelling = self._hand, judgement.labelling
        new = delivery.writes_for_refusal(self._config, hand.job, judgement.why)

        def record(conn: Connection) -> Job:
            with conn.transaction():
                ended = claims.finish(conn, hand.claim, JobState.ABANDONED, new, error=judgement.why)
                if ended.repo_id is not None:
                    refusals.add(conn, ended.repo_id, ended.issue.number, labelling.id if labelling else None)
            return ended

        hand.job = hand.db(record)
        self._subject.tell()

    def _fault(self, error: Exception) -> None:
        """The job's own fault, or ours: again with backoff, or failed with the reason once attempts are used up."""
        hand, job = self._hand, self._hand.job
        if not isinstance(error, TirelessError):
            log.error("fault job=%s", job.id, exc_info=error)
        why = self._redactor(f"{type(error).__name__}: {error}")[:2000]
        if job.attempts < job.max_attempts:
            delay = governor.backoff(job.attempts, self._config.lease.backoff_seconds)
            hand.db(lambda c: self._to_pending(c, why, keep_attempt=False, delay=delay))
            return
        ending = Ending(JobState.FAILED, why=f"Gave up after {job.attempts} attempts. The last: {why}")
        new = delivery.writes_for_ending(self._config, job, ending, "")
        hand.job = hand.db(lambda c: claims.finish(c, hand.claim, JobState.FAILED, new, error=ending.why))
        self._subject.tell()
