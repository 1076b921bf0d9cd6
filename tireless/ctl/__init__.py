"""tireless-ctl: what an operator asks and tells the queue.

    cli.py       arguments, dispatch
    commands.py  what commands register themselves with
    session.py   what every command is given: configuration, the database (an embedded one is borrowed), exit codes
    output.py    one JSON document, or text for a terminal
    lookup.py    which job or repository is meant
    documents.py what a job, a repository, a lane is in JSON; the keys are stable

and a module a command group: migrate, repos, lanes, jobs, logs, explain, status, doctor. A command does one thing
to rows, in one transaction where it is several, and a running supervisor obeys within seconds; none speaks to a
process. Nothing that tireless-ctl prints holds a secret, and nothing that came from an issue or an agent reaches
a terminal with its control characters.
"""

from tireless.ctl.cli import main

__all__ = ["main"]
