"""How work with git fails, as types. Every text is fit for an operator and holds no secret."""

from __future__ import annotations

from tireless.entities import TirelessError


class GitError(TirelessError):
    """Anything that went wrong between tireless and git."""


class GitMissing(GitError):
    """There is no git on PATH, or one so old that it would read configuration that it must not."""


class GitFailed(GitError):
    """A git command ended with a code that means failure.

    `command` is its argument list as one line, `stderr` its last lines; both without secrets.
    """

    def __init__(self, command: str, code: int, stderr: str) -> None:
        self.command = command
        self.code = code
        self.stderr = stderr
        super().__init__(f"{command} ended with {code}: {stderr or 'it said nothing'}")


class DiskFull(GitFailed):
    """No space or quota left under the state directory. It passes once there is room."""


class GitTimeout(GitError):
    def __init__(self, what: str, seconds: float) -> None:
        self.what = what
        self.seconds = seconds
        super().__init__(f"{what} took longer than {seconds:g} s and was stopped")


class Cancelled(GitError):
    """`should_stop` said so while git ran; its process tree is gone."""

    def __init__(self, what: str = "git") -> None:
        super().__init__(f"{what} was stopped on request")


class BadRemote(GitError):
    """A remote address that tireless does not speak to: not http or https, or with a user in it."""


class RemoteUnreachable(GitError):
    """The remote did not answer, or answered that it cannot now (5xx, 429). Trying later makes sense."""

    def __init__(self, url: str, detail: str) -> None:
        self.url = url
        self.detail = detail
        super().__init__(f"{url} cannot be reached: {detail}")


class RemoteRefused(GitError):
    """The remote said no: bad token, missing right, no such repository, moved, or a rule of its own."""

    def __init__(self, url: str, detail: str) -> None:
        self.url = url
        self.detail = detail
        super().__init__(f"{url} refused: {detail}")


class BranchMoved(GitError):
    """The remote branch holds commits that the delivery is not built on. It is never overwritten."""

    def __init__(self, branch: str, detail: str) -> None:
        self.branch = branch
        super().__init__(f"branch {branch} has moved on the remote and is not overwritten: {detail}")


class BadBranch(GitError):
    """A branch that tireless does not write to: the default branch, one outside its prefix, or no name."""

    def __init__(self, branch: str, why: str) -> None:
        self.branch = branch
        super().__init__(f"branch {branch!r} is not written to: {why}")


class NoDefaultBranch(GitError):
    def __init__(self, repo: str, branch: str) -> None:
        super().__init__(f"{repo} has no branch {branch!r} to start from; is the repository empty?")


class NotCollected(GitError):
    """The commit to be pushed is not what was collected for the job on this host."""

    def __init__(self, job_id: str, commit: str) -> None:
        super().__init__(f"commit {commit} is not what was collected for job {job_id} on this host")


class UnsafeWorkspace(GitError):
    """The workspace was left in a state that is not read any further."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"the workspace is not safe to read: {what}")


class TooLarge(GitError):
    """A file, or all that is new together, is over the limit for what is pushed. Sizes in bytes."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what = what
        self.size = size
        self.limit = limit
        super().__init__(f"{what} has {size} bytes; what is pushed may have {limit} at most")
