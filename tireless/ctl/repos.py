"""repo: which repositories are watched, and how."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, time
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tireless.budgeting import follow_budget
from tireless.config import ConfigError, token_source
from tireless.ctl import documents, lookup
from tireless.ctl.commands import Group
from tireless.ctl.lanes import daily_jobs, daily_usd, today
from tireless.ctl.output import Cell, age, clean, plural, seconds, when
from tireless.ctl.session import Exit, Refused, Session, Usage, clock
from tireless.delivery import writes_for_end
from tireless.entities import PollResult, RepoRef, Repository, TrackedRepo
from tireless.forge import Forbidden, ForgeClient, ForgeError, Unauthorized, Unreachable, client_for
from tireless.store import budgets, intake, jobs, repos
from tireless.store.budgets import Spent
from tireless.store.queries import Connection
from tireless.store.repos import RepoSettings, settings_of

ADD_MORE = """\
Asks the forge for the repository's default branch and the spelling of its name; its token comes from the
[[forge]] entry of the configuration. --offline asks nobody and believes what you write.

examples
  tireless-ctl repo add github:github.com/acme/site --make-labels
  tireless-ctl repo add https://git.example.org/acme/site --quiet 22:00-07:00 --zone Europe/Berlin
  tireless-ctl repo add gitea:git.example.org/acme/site --verify "make test" --max-running 1
  tireless-ctl repo add gitea:git.example.org/acme/site --offline --branch main
"""
SET_MORE = """\
Only what is given is changed.

examples
  tireless-ctl repo set acme/site --interval 300 --verify "npm test"
  tireless-ctl repo set acme/site --quiet off --max-running none --verify ""
  tireless-ctl repo set acme/site --daily-usd 5 --daily-jobs 10
  tireless-ctl repo set acme/site --make-labels
"""
RESUME_MORE = """\
A repository is held when its budget of the day is used up, until that day ends (UTC) or repo set --daily-usd or
--daily-jobs raises the budget. One that is still used up holds it again after the next run.
"""
REMOVE_MORE = """\
Its finished jobs stay as history. With jobs that wait or run it is refused, unless --cancel ends them.
"""
LABEL_COLOUR = "5319e7"


def register(top: Group) -> None:
    group = top.group("repo", "which repositories are watched, and how")
    add = group.add("add", run_add, "watch a repository", ADD_MORE)
    add.add_argument("repo", metavar="FORGE:HOST/OWNER/NAME|URL")
    _settings(add)
    add.add_argument("--disabled", action="store_true", help="do not poll it yet; repo enable does")
    add.add_argument("--offline", action="store_true", help="do not ask the forge for it")
    _labels(add)
    group.add("list", run_list, "what is watched, and how its last poll went")
    change = group.add("set", run_set, "change settings of a repository", SET_MORE)
    change.add_argument("repo", metavar="REPO")
    _settings(change)
    _labels(change)
    remove = group.add("remove", run_remove, "watch a repository no more", REMOVE_MORE)
    remove.add_argument("repo", metavar="REPO")
    remove.add_argument("--cancel", action="store_true", help="cancel its jobs that wait or run")
    resume = group.add("resume", run_resume, "end a repository's hold", RESUME_MORE)
    resume.add_argument("repo", metavar="REPO")
    for name, run, help in (
        ("enable", run_enable, "poll a repository and start its jobs again"),
        ("disable", run_disable, "neither poll a repository nor start its jobs; what runs goes on"),
        ("poll", run_poll, "poll a repository now"),
    ):
        group.add(name, run, help).add_argument("repo", metavar="REPO")


def _settings(command: argparse.ArgumentParser) -> None:
    command.add_argument("--interval", type=_interval, metavar="SECONDS", help="between two polls, 5 or more")
    command.add_argument(
        "--quiet", type=_quiet, metavar="HH:MM-HH:MM", help="start nothing in these hours; `off` for none"
    )
    command.add_argument("--zone", metavar="ZONE", help="of the quiet hours, such as Europe/Berlin (UTC)")
    command.add_argument(
        "--max-running", type=_limit, metavar="N", help="its jobs at once; `none` for no limit"
    )
    command.add_argument(
        "--verify", metavar="COMMAND", help='run after the agent; it must end with 0; "" for none'
    )
    command.add_argument(
        "--daily-usd", type=daily_usd, metavar="N", help="what its runs may cost a UTC day; `none` for no limit"
    )
    command.add_argument(
        "--daily-jobs", type=daily_jobs, metavar="N", help="its jobs a UTC day; `none` for no limit"
    )
    command.add_argument("--branch", help="the branch that work starts from and pull requests go to")
    command.add_argument("--clone-url", type=_clone_url, metavar="URL", help="where git finds it")


def _labels(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--make-labels", action="store_true", help="make the labels of [labels] that the forge lacks"
    )


def _interval(text: str) -> int:
    if not text.isdigit() or not 5 <= int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds between 5 and 86400")
    return int(text)


def _limit(text: str) -> int:
    """0 stands for none."""
    if text == "none":
        return 0
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is neither `none` nor a number between 1 and 1000")
    return int(text)


def _quiet(text: str) -> tuple[time, time] | tuple[None, None]:
    if text == "off":
        return None, None
    match = re.fullmatch(r"(\d{1,2}:\d{2})-(\d{1,2}:\d{2})", text)
    try:
        if match is None:
            raise ValueError
        start, end = (datetime.strptime(part, "%H:%M").time() for part in match.groups())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither `off` nor hours such as 22:00-07:00") from None
    return start, end


def _clone_url(text: str) -> str:
    if urlsplit(text).password or (urlsplit(text).username and "://" in text and not text.startswith("ssh")):
        raise argparse.ArgumentTypeError(
            "a URL with a user or password in it; the forge's token is used for git"
        )
    return text


# -- add ----------------------------------------------------------------------------------------------------


def run_add(session: Session) -> int:
    args = session.args
    ref = lookup.full_ref(lookup.parse_repo(args.repo, session.config), session.config)
    found = _offline(session, ref) if args.offline else _asked(session, ref)
    settings = _changed(
        RepoSettings(
            found.clone_url,
            found.default_branch,
            interval_seconds=session.config.poller.interval_seconds,
            enabled=not args.disabled,
        ),
        args,
    )
    with session.database(create=True) as conn:
        added = _with_zone(args.zone, lambda: repos.add(conn, found.ref, settings))
        if added is None:
            made = " (the labels that it lacked are made)" if args.make_labels else ""
            raise Refused(f"{found.ref} is tracked already{made}; repo set changes its settings")
        if settings.enabled:
            repos.make_due(conn, added.id)
    where = f"{added.default_branch}, every {added.schedule.interval_seconds} s"
    text = f"tracking {clean(str(added.ref))} ({clean(where)}) as number {added.id}"
    if found.ref != ref:
        text += f"; the forge spells {clean(ref.full_name)} that way"
    session.out.give(documents.repo(added), text)
    return Exit.OK


def _asked(session: Session, ref: RepoRef) -> Repository:
    """The repository as its forge has it, fit to be worked on."""
    with _forge(session, ref, "add it with --offline") as client:
        found = client.get_repository(ref)
        if session.args.make_labels:
            _make_labels(session, client, found.ref)
    if found.archived:
        raise Refused(f"{found.ref} is archived: nothing can be pushed to it")
    if found.empty:
        raise Refused(f"{found.ref} is empty: push a first commit, so that there is a branch to work from")
    return found


@contextlib.contextmanager
def _forge(session: Session, ref: RepoRef, otherwise: str) -> Iterator[ForgeClient]:
    """Who asks the repository's forge. What goes wrong there is Refused, with the way out."""
    entry = session.forge(ref.forge, ref.host)
    client = client_for(entry)
    try:
        yield client
    except Unreachable as e:
        raise Refused(f"{e}; try again, or {otherwise}") from e
    except Unauthorized as e:
        raise Refused(f"{e}; the token is from {token_source(entry)}") from e
    except ForgeError as e:
        raise Refused(f"{e}; check the name and the token's rights, or {otherwise}") from e
    finally:
        client.close()


def _make_labels(session: Session, client: ForgeClient, ref: RepoRef) -> None:
    labels = session.config.labels
    wanted = {
        labels.opt_in: "tireless works on this issue",
        labels.implement: "tireless: write the change",
        labels.plan: "tireless: split it into issues",
        labels.discover: "tireless: look for what should be done",
        labels.agent_claude_code: "tireless: with Claude Code",
        labels.agent_opencode: "tireless: with OpenCode",
    }
    try:
        for name, description in wanted.items():
            client.ensure_label(ref, name, LABEL_COLOUR, description)
    except Forbidden as e:
        raise Refused(f"the token may not make labels: {e}; make {labels.opt_in!r} by hand") from e


def _offline(session: Session, ref: RepoRef) -> Repository:
    if session.args.make_labels:
        raise Usage("--make-labels asks the forge, --offline forbids it; leave one out")
    return Repository(ref, _usual_clone_url(session, ref), "main", archived=False, empty=False)


def _usual_clone_url(session: Session, ref: RepoRef) -> str:
    """As the forge's client makes it, from the configured URL if there is one."""
    try:
        entry = session.config.forge_for(ref.forge, ref.host)
    except ConfigError:
        return f"https://{ref.host}/{ref.full_name}.git"
    client = client_for(entry)
    try:
        return client.clone_url(ref)
    finally:
        client.close()


def _changed(settings: RepoSettings, args: argparse.Namespace) -> RepoSettings:
    """The settings with what the command line gives."""
    new: dict[str, Any] = {}
    for key, value in (
        ("interval_seconds", args.interval),
        ("quiet_zone", args.zone),
        ("default_branch", args.branch),
        ("clone_url", args.clone_url),
    ):
        if value is not None:
            new[key] = value
    if args.quiet is not None:
        new["quiet_from"], new["quiet_until"] = args.quiet
    if args.max_running is not None:
        new["max_running"] = args.max_running or None
    if args.daily_usd is not None:
        new["daily_usd"] = args.daily_usd or None
    if args.daily_jobs is not None:
        new["daily_jobs"] = args.daily_jobs or None
    if args.verify is not None:
        new["verify_command"] = args.verify.strip() or None
    return replace(settings, **new)


def _with_zone(zone: str | None, action: Callable[[], TrackedRepo | None]) -> TrackedRepo | None:
    """Which zones there are is the database's to know: the claim reckons with them there."""
    try:
        return action()
    except psycopg.errors.InvalidParameterValue as e:
        raise Usage(f"the database knows no time zone {zone!r}; write one such as Europe/Berlin") from e


# -- list and change ----------------------------------------------------------------------------------------


def run_list(session: Session) -> int:
    with session.database() as conn:
        tracked = repos.tracked(conn, disabled_too=True)
        spent = budgets.spent_by_repo(conn)
        now = clock(conn)
    rows = [_row(repo, spent.get(repo.id), now) for repo in tracked]
    head = ["NO", "REPOSITORY", "POLL", "EVERY", "QUIET", "TODAY", "LAST", "NEXT", "DETAIL"]
    text = session.out.table(head, rows) if rows else "no repository is tracked; tireless-ctl repo add"
    document = [{**documents.repo(r), "spent_today": documents.spent(spent.get(r.id))} for r in tracked]
    session.out.give(document, text)
    return Exit.OK


def is_held(repo: TrackedRepo, now: datetime) -> bool:
    """As the claim judges it."""
    return repo.held_until is not None and repo.held_until > now


def _row(repo: TrackedRepo, spent: Spent | None, now: datetime) -> list[Cell | str]:
    schedule = repo.schedule
    quiet = "-"
    if schedule.quiet_from is not None and schedule.quiet_until is not None:
        quiet = f"{schedule.quiet_from:%H:%M}-{schedule.quiet_until:%H:%M} {schedule.quiet_zone}"
    held = is_held(repo, now)
    return [
        str(repo.id),
        str(repo.ref),
        Cell("held", "bad") if held and schedule.enabled else _state(repo),
        seconds(schedule.interval_seconds),
        quiet,
        today(spent, repo.daily_usd, repo.daily_jobs),
        age(repo.last_polled_at, now),
        age(repo.next_poll_at, now) if schedule.enabled else "-",
        clean(f"{repo.hold_reason} (until {when(repo.held_until)})" if held else repo.poll_detail or "", 80),
    ]


def _state(repo: TrackedRepo) -> Cell:
    if not repo.schedule.enabled:
        return Cell("disabled", "dim")
    if repo.poll_result is None:
        return Cell("not yet", "busy")
    tone = "good" if repo.poll_result in (PollResult.CHANGED, PollResult.UNCHANGED) else "bad"
    return Cell(repo.poll_result.value, tone)


def run_set(session: Session) -> int:
    args = session.args
    with session.database() as conn:
        repo = lookup.repo(conn, args.repo, session.config)
        before = settings_of(repo)
        settings = _changed(before, args)
        if settings == before and not args.make_labels:
            raise Usage("nothing to change; give --interval, --quiet, --verify … (see --help)")
        if args.make_labels:
            with _forge(session, repo.ref, "make them by hand") as client:
                _make_labels(session, client, repo.ref)
        changed = _with_zone(args.zone, lambda: _update(conn, repo.id, before, settings))
        _wake(conn, repo)
    what = "changed" if settings != before else "made the labels of"
    return _told(session, changed, repo, what)


def _update(conn: Connection, repo_id: int, before: RepoSettings, settings: RepoSettings) -> TrackedRepo | None:
    with conn.transaction():
        changed = repos.update(conn, repo_id, settings)
        if (settings.daily_usd, settings.daily_jobs) != (before.daily_usd, before.daily_jobs):
            follow_budget(conn, repo_id=repo_id)
    return changed


def run_resume(session: Session) -> int:
    with session.database() as conn:
        repo = lookup.repo(conn, session.args.repo, session.config)
        held = is_held(repo, clock(conn))
        repos.release_hold(conn, repo.id)
        found = repos.find(conn, repo_id=repo.id)
        _wake(conn, repo)
    return _told(session, found[0] if found else None, repo, "resumed" if held else "was not held:")


def run_enable(session: Session) -> int:
    return _enable(session, True)


def run_disable(session: Session) -> int:
    return _enable(session, False)


def _enable(session: Session, enabled: bool) -> int:
    with session.database() as conn:
        repo = lookup.repo(conn, session.args.repo, session.config)
        changed = repos.update(conn, repo.id, replace(settings_of(repo), enabled=enabled))
        if enabled:
            _wake(conn, repo)
    return _told(session, changed, repo, "enabled" if enabled else "disabled")


def _wake(conn: Connection, repo: TrackedRepo) -> None:
    repos.make_due(conn, repo.id)


def _told(session: Session, changed: TrackedRepo | None, repo: TrackedRepo, what: str) -> int:
    if changed is None:
        raise Refused(f"{repo.ref} was removed meanwhile")
    session.out.give(documents.repo(changed), f"{what} {clean(str(changed.ref))}")
    return Exit.OK


def run_remove(session: Session) -> int:
    with session.database() as conn:
        repo = lookup.repo(conn, session.args.repo, session.config)
        live = intake.live_jobs_of_repo(conn, repo)
        if live and not session.args.cancel:
            verb = "waits or runs" if len(live) == 1 else "wait or run"
            raise Refused(
                f"{repo.ref} has {plural(len(live), 'job')} that {verb}; --cancel ends them, repo disable "
                "starts no more"
            )
        with conn.transaction():
            writes_for = writes_for_end(session.config)
            reason = "its repository is no longer watched"
            jobs.cancel(conn, [j.id for j in live], reason, writes_for=writes_for, actor=session.actor)
            repos.remove(conn, repo.id)
    text = f"removed {clean(str(repo.ref))}" + (f", cancelled {plural(len(live), 'job')}" if live else "")
    document = {"removed": documents.repo(repo), "cancelled": [str(j.id) for j in live]}
    session.out.give(document, text)
    return Exit.OK


def run_poll(session: Session) -> int:
    with session.database() as conn:
        repo = lookup.repo(conn, session.args.repo, session.config)
        if not repo.schedule.enabled:
            raise Refused(f"{repo.ref} is disabled; tireless-ctl repo enable {repo.ref}")
        repos.make_due(conn, repo.id)
    last = f"; the last poll was at {when(repo.last_polled_at)}" if repo.last_polled_at else ""
    session.out.give(documents.repo(repo), f"{clean(str(repo.ref))} is due now{last}")
    return Exit.OK
