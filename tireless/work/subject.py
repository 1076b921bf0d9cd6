"""What the job is about: its issue at the forge, who asked for it, and its repository."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime

import psycopg

from tireless import outbox
from tireless.agents import prompt as prompts
from tireless.config import CommentPolicy
from tireless.entities import Issue, NewWrite, TrackedRepo
from tireless.forge import ForgeClient, ForgeError, Gate, Moved, NotFound, client_for
from tireless.labels import is_opted_in
from tireless.store import refusals, repos, writes
from tireless.store.connection import is_outage
from tireless.store.queries import Connection
from tireless.who import Askers, Judgement
from tireless.work.in_hand import InHand
from tireless.work.leaving import NotEntitled, Withdrawn
from tireless.workspace import Remote

log = logging.getLogger(__name__)

_JUDGED_SECONDS = 60.0  # who set the label is not asked again within this time


class Subject:
    """The issue of the job in hand. Its client is made when it is first wanted."""

    def __init__(self, hand: InHand, gate: Gate | None) -> None:
        self._hand = hand
        self._config = hand.config
        self._gate = gate
        self._client_made: ForgeClient | None = None
        self._askers_made: Askers | None = None
        self._judged: Judgement | None = None
        self._judged_at = float("-inf")
        self._repo_row: TrackedRepo | None = None

    def look(self, *, lenient: bool = False) -> Issue:
        """The issue as it is now: closed, unlabelled, moved, or a pull request, it is withdrawn work."""
        protocol, ref = self._config.labels, self._hand.job.issue
        try:
            issue = self._client().get_issue(ref)
        except NotFound:
            raise Withdrawn("the issue is gone, or hidden from the token") from None
        except Moved as e:
            raise Withdrawn(f"the issue was transferred to {e.issue or e.to}") from None
        except ForgeError as e:
            if lenient:  # the push will find out for itself whether the forge is there
                log.warning("issue not looked at again job=%s error=%s", self._hand.job.id, e)
                return Issue(ref, self._hand.job.title, "", (), True, False, "", "")
            raise
        if issue.is_pull_request:
            raise Withdrawn("the issue is a pull request now")
        if not issue.is_open:
            raise Withdrawn("the issue is closed")
        if not is_opted_in(issue.labels, protocol):
            raise Withdrawn(f"the label {protocol.opt_in} was taken off")
        return issue

    def judge_asker(self) -> Judgement:
        """Who set the label, if that one may start work; NotEntitled if not."""
        if self._judged is None or time.monotonic() - self._judged_at > _JUDGED_SECONDS:
            self._judged, self._judged_at = self._askers().judge(), time.monotonic()
        if not self._judged.entitled:
            raise NotEntitled(self._judged)
        return self._judged

    def as_asked(self, issue: Issue) -> Issue:
        """The issue as its agent is to see it, if who set the label may start work."""
        self.judge_asker()
        return self._askers().text(issue, self._text())

    def remarks(self, issue: Issue) -> list[prompts.Remark]:
        """The comments that the agent is to see."""
        policy = self._config.prompt.comments
        if policy is CommentPolicy.NONE:
            return []
        comments = self._client().list_comments(self._hand.job.issue)
        found = self._askers().remarks(comments, self._asked_at())
        kept = [c for c in found if not c.body.startswith("<!-- tireless:")]
        if policy is CommentPolicy.AUTHOR:
            kept = [c for c in kept if c.author.casefold() == issue.author.casefold()]
        return [prompts.Remark(c.author, c.body) for c in kept]

    @property
    def repo(self) -> TrackedRepo:
        if self._repo_row is None:
            repo_id = self._hand.job.repo_id
            rows = self._hand.db(lambda c: repos.find(c, repo_id=repo_id)) if repo_id is not None else []
            if not rows:
                raise Withdrawn(f"{self._hand.job.issue.repo_ref} is no longer tracked")
            self._repo_row = rows[0]
        return self._repo_row

    @property
    def remote(self) -> Remote:
        ref = self._hand.job.issue
        entry = self._config.forge_for(ref.forge, ref.host)
        return Remote(self.repo.clone_url, entry.git_user, entry.token, entry.ca_file)

    def tell(self, *new: NewWrite) -> None:
        """Queue what is `new`, and write what is queued for this job now; what does not go through is the poller's to
        try again."""
        hand = self._hand
        if new:
            hand.db(lambda c: self._queue(c, new))
        try:
            outbox.drain(
                hand.link.connection,
                lambda _: self._client(),
                hand.claim.worker,
                job_id=hand.job.id,
                give_up=lambda: hand.ctx.stopping,
                turn=hand.beat,
            )
        except psycopg.Error as e:
            if not is_outage(e):
                raise

    def _queue(self, conn: Connection, new: Sequence[NewWrite]) -> None:
        with conn.transaction():
            writes.add(conn, self._hand.job, new)

    def _asked_at(self) -> datetime | None:
        """When the label was set, or else first seen."""
        labelling = self.judge_asker().labelling
        text = self._text()
        known = labelling.at if labelling is not None else None
        return known or (text.seen_at if text is not None else None)

    def _text(self) -> refusals.JobText | None:
        return self._hand.db(lambda c: refusals.text_of(c, self._hand.job.id))

    def _askers(self) -> Askers:
        if self._askers_made is None:
            config = self._config
            self._askers_made = Askers(config.who, config.labels.opt_in, self._client(), self._hand.job.issue)
        return self._askers_made

    def _client(self) -> ForgeClient:
        if self._client_made is None:
            ref = self._hand.job.issue
            entry = self._config.forge_for(ref.forge, ref.host)
            self._client_made = client_for(entry, stop=self._hand.ctx.stop_event, gate=self._gate)
        return self._client_made

    def close(self) -> None:
        if self._client_made is not None:
            self._client_made.close()
