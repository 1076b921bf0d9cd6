"""The command `tireless-supervisor`: arguments, configuration, logging, exit code."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tireless import __version__, config, poller, runner
from tireless.config import Config, ConfigError
from tireless.notify import Notifier
from tireless.process import Exit, check_reload
from tireless.supervisor.errands import Errands
from tireless.supervisor.logs import Logs
from tireless.supervisor.loop import Main, Supervisor

log = logging.getLogger(__name__)

DESCRIPTION = """\
Polls your forges for issues with the label `tireless`, runs a coding agent on each, and leaves a
pull request. Runs in the foreground, under runit, systemd or a terminal, and logs to stderr.
"""

EPILOG = """\
signals
  TERM, INT   the first one drains: running agents finish, nothing new is started
              the second one stops within 5 s: running work is cut off and requeued
  QUIT        ends at once
  HUP         reads the configuration again; a bad one is refused and the old one stays
  USR1        logs one line of status a process

exit codes
  0   drained, nothing was cut off
  1   stopped with work cut off; it is queued again
  64  bad command line, or another supervisor uses the same state_dir
  69  no database
  70  the poller crashed again and again, or a fault in the supervisor itself
  78  the configuration cannot be used, or the schema is from a newer program

examples
  tireless-supervisor                             ./tireless.toml, else /etc/tireless/tireless.toml
  tireless-supervisor --config my.toml --check-config
  kill -HUP $(cat STATE_DIR/supervisor.lock)      after a change of the configuration

Without a database URL it starts a Postgres of its own under state_dir. What it does, job by job,
and what to do about it: tireless-ctl --help.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(Exit.USAGE, f"{self.prog}: {message}; try --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tireless-supervisor",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="PATH", help="the configuration, a TOML file")
    parser.add_argument(
        "--check-config", action="store_true", help="read it, say what is wrong, and leave (0 or 78)"
    )
    parser.add_argument(
        "--log-timestamps",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="begin each log line with the time (default: on a terminal only, since svlogd and journald add it)",
    )
    parser.add_argument("--version", action="version", version=f"tireless {__version__}")
    return parser


def _lacking(loaded: Config) -> list[str]:
    """What the lanes of this host pass on to their agents and is not there, for people."""
    return [
        f"lane.{kind}.env_from names {config.variable_shown(name)}, which is not set: the lane's agents go without"
        for kind, lane in loaded.lane.items()
        if lane.processes > 0
        for name in config.unset_variables(lane)
    ]


def main(
    argv: Sequence[str] | None = None,
    *,
    errands: Errands | None = None,
    poller: Main = poller.main,
    runner: Main = runner.main,
) -> int:
    """The command; its exit code. The parts that do the work can be replaced."""
    args = _parser().parse_args(argv)
    try:
        loaded = config.load(args.config, os.environ)
    except ConfigError as e:
        for line in str(e).splitlines():
            print(f"tireless-supervisor: {line}", file=sys.stderr)
        return Exit.CONFIG
    lacking = _lacking(loaded)
    if args.check_config:
        for line in lacking:
            print(f"tireless-supervisor: {line}", file=sys.stderr)
        print(f"{loaded.path or 'no file, defaults'}: good")
        return Exit.DRAINED
    logs = Logs(args.log_timestamps)
    logs.apply(loaded)
    if loaded.path is None:
        log.warning("no configuration found (looked at %s); using defaults", config.looked_at())
    if not loaded.forge:
        log.warning("no [[forge]] is configured: nothing will be polled")
    for line in lacking:
        log.warning("%s", line)

    own_pid = os.getpid()

    def reload(current: Config) -> Config:
        """In the supervisor and in its children, of which one that says it is enough."""
        new = logs.apply(check_reload(current, config.load(args.config, os.environ)))
        if os.getpid() == own_pid:
            for line in _lacking(new):
                if line not in lacking:
                    log.warning("%s", line)
        return new

    notifier = Notifier.from_environ(os.environ)
    supervisor = Supervisor(
        loaded, reload, errands=errands, poller=poller, runner=runner, notifier=notifier, on_fork=logs.speaker
    )
    return supervisor.run()
