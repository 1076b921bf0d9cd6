"""Which job, repository or lane is meant. Who is not found, or not alone, is told what there is."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit
from uuid import UUID

from tireless.config import Config
from tireless.ctl.output import clean
from tireless.ctl.session import Refused, Usage
from tireless.entities import AgentKind, Forge, IssueRef, Job, RepoRef, TrackedRepo
from tireless.store import jobs, repos
from tireless.store.queries import Connection

LANE_NAMES = {
    "claude_code": AgentKind.CLAUDE_CODE,
    "claude-code": AgentKind.CLAUDE_CODE,
    "cc": AgentKind.CLAUDE_CODE,
    "opencode": AgentKind.OPENCODE,
    "oc": AgentKind.OPENCODE,
}
_NAME = r"[A-Za-z0-9_.-]+"
_HOST = r"[A-Za-z0-9.-]+(?::\d+)?"
_REPO = re.compile(rf"(?:(?:(?P<forge>[a-z]+):)?(?P<host>{_HOST})/)?(?P<owner>{_NAME})/(?P<repo>{_NAME})")
_SSH = re.compile(rf"(?:[\w-]+@)(?P<host>[A-Za-z0-9.-]+):(?P<path>{_NAME}/{_NAME})")
_ISSUE = re.compile(r"(?P<repo>.+)#(?P<number>\d+)")
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class RepoPattern:
    """What an operator wrote of a repository; what he left out is None."""

    forge: Forge | None
    host: str | None
    owner: str
    repo: str

    def matches(self, ref: RepoRef) -> bool:
        return (
            (self.forge is None or self.forge is ref.forge)
            and (self.host is None or self.host.casefold() == ref.host.casefold())
            and (self.owner.casefold(), self.repo.casefold()) == (ref.owner.casefold(), ref.repo.casefold())
        )

    def __str__(self) -> str:
        host = f"{self.host}/" if self.host else ""
        return f"{f'{self.forge}:' if self.forge else ''}{host}{self.owner}/{self.repo}"


def lane(text: str) -> AgentKind:
    """An argparse type."""
    try:
        return LANE_NAMES[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(
            f"no lane {text!r}; there is claude_code (cc) and opencode (oc)"
        ) from None


def parse_repo(text: str, config: Config) -> RepoPattern:
    """FORGE:HOST/OWNER/NAME, HOST/OWNER/NAME, OWNER/NAME or a URL. Usage if it is none of these; its text
    repeats no URL, which may hold a password."""
    if "://" in text:
        return _parse_url(text, config)
    ssh = _SSH.fullmatch(text)
    if ssh is not None:
        owner, _, repo = ssh["path"].partition("/")
        return RepoPattern(None, ssh["host"], owner, repo.removesuffix(".git"))
    match = _REPO.fullmatch(text)
    if match is None:
        raise Usage(
            f"{clean(text, 100)!r} names no repository; write FORGE:HOST/OWNER/NAME "
            "(github:github.com/acme/site), OWNER/NAME, or its URL"
        )
    return RepoPattern(_forge(match["forge"]), match["host"], match["owner"], match["repo"])


def _forge(text: str | None) -> Forge | None:
    if text is None:
        return None
    try:
        return Forge(text)
    except ValueError:
        raise Usage(f"no forge {text!r}; there is {', '.join(Forge)}") from None


def _parse_url(text: str, config: Config) -> RepoPattern:
    try:
        url = urlsplit(text)
        host = (url.hostname or "") + (f":{url.port}" if url.port and url.scheme != "ssh" else "")
    except ValueError:
        raise Usage("that URL cannot be read; it looks like https://HOST/OWNER/NAME") from None
    entry = next((e for e in config.forge if e.host.casefold() == host.casefold()), None)
    parts = [part for part in url.path.split("/") if part]
    if entry is not None and entry.api_url is not None:  # a forge that lives under a path of its host
        above = [part for part in urlsplit(entry.api_url).path.split("/") if part]
        above = above[: above.index("api")] if "api" in above else []
        if parts[: len(above)] == above:
            parts = parts[len(above) :]
    if not host or len(parts) < 2:
        raise Usage("that URL names no repository; it looks like https://HOST/OWNER/NAME")
    return RepoPattern(None, host, parts[0], parts[1].removesuffix(".git"))


def full_ref(pattern: RepoPattern, config: Config) -> RepoRef:
    """The repository with its forge and host, which the configuration fills in where it leaves no choice."""
    entries = [
        e
        for e in config.forge
        if (pattern.forge is None or e.kind is pattern.forge)
        and (pattern.host is None or e.host.casefold() == pattern.host.casefold())
    ]
    if pattern.forge is not None and pattern.host is not None:
        host = entries[0].host if entries else pattern.host
        return RepoRef(pattern.forge, host, pattern.owner, pattern.repo)
    if len(entries) == 1:
        return RepoRef(entries[0].kind, entries[0].host, pattern.owner, pattern.repo)
    if not entries and pattern.host is not None and pattern.host.casefold() == "github.com":
        return RepoRef(Forge.GITHUB, "github.com", pattern.owner, pattern.repo)
    known = ", ".join(f"{e.kind}:{e.host}" for e in config.forge) or "none"
    raise Usage(
        f"which forge {pattern} is on is not clear; write FORGE:HOST/{pattern.owner}/{pattern.repo} "
        f"(the configuration has {known})"
    )


def repo(conn: Connection, text: str, config: Config) -> TrackedRepo:
    """The one tracked repository that is meant, by name, URL or number. Refused, with what there is."""
    tracked = repos.tracked(conn, disabled_too=True)
    if text.isdigit():
        found = [r for r in tracked if r.id == int(text)]
    else:
        pattern = parse_repo(text, config)
        found = [r for r in tracked if pattern.matches(r.ref)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Refused(f"{text!r} is more than one: {', '.join(str(r.ref) for r in found)}; write it in full")
    near = ", ".join(str(r.ref) for r in tracked[:_SHOWN]) or "none yet; tireless-ctl repo add"
    raise Refused(f"no tracked repository {clean(text, 100)!r}; tracked: {near}")


class Names:
    """What issues are called in text: OWNER/NAME#N, with the host in front where several instances have one of
    that name."""

    def __init__(self, refs: Iterable[RepoRef]) -> None:
        short = Counter(ref.full_name.casefold() for ref in set(refs))
        self._shared = {name for name, n in short.items() if n > 1}

    def of(self, issue: IssueRef) -> str:
        name = issue.repo_ref.full_name
        host = f"{issue.host}/" if name.casefold() in self._shared else ""
        return f"{host}{name}#{issue.number}"


def names(conn: Connection) -> Names:
    """As they are with what is tracked now."""
    return Names(r.ref for r in repos.tracked(conn, disabled_too=True))


@dataclass(frozen=True, slots=True)
class IssuePattern:
    repo: RepoPattern
    number: int


def exactly(issue: IssueRef) -> IssuePattern:
    return IssuePattern(RepoPattern(issue.forge, issue.host, issue.owner, issue.repo), issue.number)


def parse_issue(text: str, config: Config) -> IssuePattern | None:
    """OWNER/NAME#NUMBER, with forge and host in front if need be; None if it is not of that form."""
    match = _ISSUE.fullmatch(text)
    return IssuePattern(parse_repo(match["repo"], config), int(match["number"])) if match else None


def job(conn: Connection, text: str, config: Config) -> Job:
    """The one job that is meant: a uuid, the beginning of one, or OWNER/NAME#NUMBER for an issue's latest."""
    issue = parse_issue(text, config)
    if issue is not None:
        found = jobs_of_issue(conn, issue)
        if not found:
            raise Refused(f"issue {text} has never had a job; tireless-ctl explain {text} says why")
        hosts = {j.issue.repo_ref for j in found}
        if len(hosts) > 1:
            raise Refused(
                f"{text} is more than one: {', '.join(f'{h}#{issue.number}' for h in sorted(hosts, key=str))}; "
                "write it in full"
            )
        return found[0]
    return _job_by_id(conn, text.lower())


def jobs_of_issue(conn: Connection, issue: IssuePattern) -> list[Job]:
    """An issue's jobs, newest first."""
    named = jobs.find(conn, owner=issue.repo.owner, repo=issue.repo.repo, number=issue.number, limit=1000)
    return [j for j in named if issue.repo.matches(j.issue.repo_ref)]


def _job_by_id(conn: Connection, text: str) -> Job:
    if not re.fullmatch(r"[0-9a-f-]{1,36}", text):
        raise Usage(
            f"{clean(text, 100)!r} names no job; write its id, the beginning of it, or OWNER/NAME#NUMBER"
        )
    try:
        whole = jobs.get(conn, UUID(text)) if len(text) == 36 else None
    except ValueError:
        whole = None
    if whole is not None:
        return whole
    found = jobs.find(conn, id_prefix=text, limit=_SHOWN + 1)
    if len(found) == 1:
        return found[0]
    if found:
        raise Refused(f"{text!r} begins more than one job's id:\n{_listing(found, names(conn))}")
    latest = jobs.find(conn, limit=5)
    there = f"the latest are:\n{_listing(latest, names(conn))}" if latest else "there are none yet"
    raise Refused(f"no job whose id begins with {text!r}; {there}")


def _listing(found: list[Job], called: Names) -> str:
    lines = [f"  {j.id}  {called.of(j.issue)}  {j.state}" for j in found[:_SHOWN]]
    return "\n".join([*lines, "  …"] if len(found) > _SHOWN else lines)
