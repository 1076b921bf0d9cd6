"""Commands, and groups of them, as argparse has them: what each module registers itself with."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from tireless.ctl.session import Exit, Session

Command = Callable[[Session], int]


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(Exit.USAGE, f"{self.prog}: {message}; try --help\n")


class Group:
    """A set of commands, and of sets of commands."""

    def __init__(self, parent: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
        self._commands = parent.add_subparsers(title="commands", metavar="COMMAND", required=True)
        self._common = common

    def add(self, name: str, run: Command | None, help: str, more: str = "") -> argparse.ArgumentParser:
        made: Any = self._commands.add_parser(
            name,
            parents=[self._common],
            help=help,
            description=help[0].upper() + help[1:] + ".",
            epilog=more,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if run is not None:
            made.set_defaults(command=run)
        return made  # type: ignore[no-any-return]

    def group(self, name: str, help: str, more: str = "") -> Group:
        return Group(self.add(name, None, help, more), self._common)
