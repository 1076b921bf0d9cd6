"""Where the job is worked: the repository's mirror, the job's checkout, and what its branch already holds."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from tireless.agents import prompt as prompts
from tireless.agents.base import Places
from tireless.agents.sandbox import Sandbox
from tireless.store import jobs
from tireless.work.in_hand import InHand
from tireless.work.leaving import Passing
from tireless.work.subject import Subject
from tireless.workspace import Checkout, Mirror, Room, Workspaces


class Workplace:
    """git is called through `workspaces` only; while it works, the claim is looked at."""

    def __init__(self, hand: InHand, subject: Subject, sandbox: Sandbox) -> None:
        self._hand = hand
        self._subject = subject
        account = sandbox.account
        self.workspaces = Workspaces(
            hand.config.state_dir,
            hand.config.git,
            timeout=hand.config.runner.git_timeout_seconds,
            beat=hand.beat,
            should_stop=hand.should_stop,
            owner=(account.uid, account.gid) if account is not None else None,
        )

    @property
    def room(self) -> Room:
        return self.workspaces.room(self._hand.config.runner.min_free_bytes)

    def demand_room(self) -> None:
        """A Passing where the disk has too little for work to begin."""
        if self.room.tight:
            where = self._hand.config.state_dir
            raise Passing(f"the disk under {where} has too little room: {self.room.to_begin}")

    def took_the_room(self, *, alone: bool = True) -> str | None:
        """In words, if the job's own workspace is why the disk has too little; see Room.taken_by."""
        taken = self.room.taken_by(str(self._hand.job.id), alone=alone)
        return (
            None
            if taken is None
            else f"its workspace takes {taken // 1024**2} MB of the disk; {self.room.to_go_on}"
        )

    def updated_mirror(self) -> Mirror:
        return self.workspaces.update_mirror(self._hand.job.issue.repo_ref, self._subject.remote)

    @property
    def mirror(self) -> Mirror:
        """As it is; the forge is not asked."""
        return self.workspaces.mirror_of(self._hand.job.issue.repo_ref)

    def checkout(self) -> Checkout:
        """The job's own, from before a crash too, or else a new one."""
        job = self._hand.job
        found = self.workspaces.find(job.id)
        if found is not None:
            return found
        branch = job.branch or f"{self._hand.config.git.branch_prefix}{job.issue.number}"
        earlier = self._hand.db(lambda c: jobs.of_issue(c, job.issue))
        own = [one.head_commit for one in earlier if one.head_commit is not None]
        return self.workspaces.prepare(self.mirror, job.id, branch, self._subject.repo.default_branch, own)

    def places(self, checkout: Checkout) -> Places:
        return Places(checkout.path, checkout.home, checkout.report, checkout.tmp, self.mirror.path)

    def earlier_work(self, checkout: Checkout) -> prompts.Earlier | None:
        """What earlier jobs of the issue left on the branch."""
        if checkout.start_commit == checkout.base_commit:
            return None
        commits = self.workspaces.commits_between(self.mirror, checkout.base_commit, checkout.start_commit)
        earlier = self._hand.db(lambda c: jobs.of_issue(c, self._hand.job.issue))
        url = next((job.pull_request_url for job in earlier if job.pull_request_url), None)
        return prompts.Earlier(checkout.branch, commits, url)


def run_dir(checkout: Checkout, run_id: UUID) -> Path:
    """Where a run of the agent keeps its stream, its guard's notes and its exit."""
    return checkout.run / str(run_id)
