"""Arguments in, exit code out. What goes wrong is told on stderr, one line a fault, with the way out."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg

from tireless import __version__, config
from tireless.config import Config
from tireless.ctl import doctor, explain, jobs, lanes, logs, migrate, repos, status
from tireless.ctl.commands import Group, Parser
from tireless.ctl.output import Output
from tireless.ctl.session import Exit, Session, failure
from tireless.entities import TirelessError

DESCRIPTION = """\
Asks and tells the queue. Everything it changes is a row that every host obeys within seconds; it
works whether or not a supervisor runs. Without a database URL it uses the embedded Postgres under
state_dir, which it starts, and stops again, when no supervisor has.
"""

EPILOG = """\
JOB is an id, the beginning of one, or OWNER/NAME#NUMBER for the latest job of an issue.
REPO is OWNER/NAME, HOST/OWNER/NAME, FORGE:HOST/OWNER/NAME, a URL, or its number in `repo list`.
LANE is claude_code (cc) or opencode (oc).

first steps
  tireless-ctl doctor                        is everything there that is needed?
  tireless-ctl migrate                       make the tables
  tireless-ctl repo add github:github.com/acme/site --make-labels
  (set the label `tireless` on an issue and start tireless-supervisor)

every day
  tireless-ctl status                        lanes, workers, queue, what is in trouble
  tireless-ctl jobs --state live             what waits and what runs
  tireless-ctl explain acme/site#7           why does it not run?
  tireless-ctl logs acme/site#7 -f           what is its agent doing?
  tireless-ctl lane pause cc --reason "invoice first"

exit codes
  0   done
  1   refused or failed; the text says why
  64  bad command line
  69  no database
  78  the configuration cannot be used, or the schema does not fit this program
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line; `command` of what it parses is what to run."""
    top = Parser(
        prog="tireless-ctl",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"tireless {__version__}")
    # Given before or after the command's name; SUPPRESS, or the later parser's default would win over the earlier.
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--config", type=Path, metavar="PATH", help="the configuration, a TOML file")
    common.add_argument("--json", action="store_true", help="answer with one JSON document")
    _take_options(top, common)
    group = Group(top, common)
    for module in (migrate, repos, lanes, jobs, logs, explain, status, doctor):
        module.register(group)
    _register_by_their_other_names(group)
    return top


def _register_by_their_other_names(top: Group) -> None:
    """One way to say it for all three: `job list` as `repo list` has it, `repos` as `jobs` has it."""
    job = top.group("job", "what is done about jobs, as a group: list, show, logs, explain, cancel, retry")
    jobs.register(job, listed_by="list")
    for module in (logs, explain):
        module.register(job)
    top.add("repos", repos.run_list, "the same as repo list")
    top.add("lanes", lanes.run_list, "the same as lane list")


def _take_options(target: argparse.ArgumentParser, source: argparse.ArgumentParser) -> None:
    for action in source._actions:
        target._add_action(action)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit code (see --help)."""
    try:
        args = parser().parse_args(argv)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else Exit.USAGE
    logging.basicConfig(level=logging.WARNING, format="tireless-ctl: %(message)s", stream=sys.stderr)
    with _leaving_in_order():
        return _run(args)


@contextlib.contextmanager
def _leaving_in_order() -> Iterator[None]:
    """TERM and HUP end it as INT does: what it started is ended, and what it made for itself is removed."""

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    own = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    # One that is ignored stays so (nohup).
    before = {sig: signal.signal(sig, leave) for sig in own if signal.getsignal(sig) is signal.SIG_DFL}
    try:
        yield
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)


def _run(args: argparse.Namespace) -> int:
    loaded: Config | None = None
    try:
        with contextlib.suppress(AttributeError):
            sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        loaded = config.load(getattr(args, "config", None), os.environ, tokens=False)
        if loaded.path is None:
            print(f"no configuration found (looked at {config.looked_at()}); using defaults", file=sys.stderr)
        code = args.command(Session(args, loaded, Output(getattr(args, "json", False))))
        sys.stdout.flush()
        return int(code)
    except BrokenPipeError:  # `| head`: whoever read has what he wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return Exit.OK
    except KeyboardInterrupt:
        return 130
    except (TirelessError, psycopg.Error) as e:
        code, text = failure(e, loaded)
        for line in text.splitlines() if code == Exit.CONFIG else [text]:
            print(f"tireless-ctl: {line}", file=sys.stderr)
        return code
