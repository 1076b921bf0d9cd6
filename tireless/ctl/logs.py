"""logs: what happened to a job, and what its agent said, if it said it on this host.

Events come from the database. What an agent said is a file of each run under state_dir/work/JOB/run/RUN: the raw
stream while it runs, a masked and bounded transcript afterwards.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

from tireless.agents import adapter_for, runfiles
from tireless.agents.base import Decoder, Event, EventKind
from tireless.config import Config, ConfigError, agent_environment, with_token
from tireless.ctl import documents, lookup
from tireless.ctl.commands import Group
from tireless.ctl.jobs import event_line
from tireless.ctl.output import age, clean, when
from tireless.ctl.session import Exit, Refused, Session, Usage, clock
from tireless.entities import AgentRun, Job
from tireless.redact import Redactor, secrets_in
from tireless.store import jobs, migrate, runs
from tireless.store.connection import Link, through_outage
from tireless.store.queries import Connection

MORE = """\
Transcripts stay with the job's workspace for runner.keep_workspace_days.

examples
  tireless-ctl logs acme/site#7            events, and each run's transcript
  tireless-ctl logs acme/site#7 -f         and on, until the job has ended
  tireless-ctl logs 3f2a --raw             the agent's own stream, one JSON object a line
"""
FOLLOW_SECONDS = 0.5
OUTAGE_SECONDS = 120.0
_CHUNK = 1 << 16


def register(group: Group) -> None:
    command = group.add("logs", run, "what happened to a job, and what its agent said", MORE)
    command.add_argument("job", metavar="JOB", help="an id, the beginning of one, or OWNER/NAME#NUMBER")
    command.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    command.add_argument("--raw", action="store_true", help="only the agent's stream, as it is")


def run(session: Session) -> int:
    args = session.args
    if session.out.as_json and (args.follow or args.raw):
        raise Usage("--json is one document; it goes with neither --follow nor --raw")
    with session.url() as url:
        timeout = session.config.database.connect_timeout_seconds
        link = Link(url, timeout=timeout, name="tireless-ctl")
        try:
            with link.connection() as conn:
                migrate.check(conn)
                job = lookup.job(conn, args.job, session.config)
            log = _Log(session, job.id)
            if session.out.as_json:
                with link.connection() as conn:
                    session.out.give(log.document(conn), "")
                return Exit.OK
            _print(session, log, link)
        finally:
            link.close()
    return Exit.OK


def _print(session: Session, log: _Log, link: Link) -> None:
    """All that is there; with --follow, what comes until the job has ended. Of a run that has said nothing so far
    stderr gets a line, once: what is printed is what was said."""
    silent: list[str] | None = None

    def look() -> bool:
        nonlocal silent
        with link.connection() as conn:
            ended = log.step(conn)
            if silent is None:
                silent = log.silent(clock(conn))
            return ended

    told = False
    while True:
        ended = through_outage(look, what="logs", sleep=time.sleep, give_up_after=OUTAGE_SECONDS)
        sys.stdout.flush()
        for line in [] if told else silent or []:
            print(line, file=sys.stderr, flush=True)
        told = True
        if ended or not session.args.follow:
            break
        time.sleep(FOLLOW_SECONDS)
    if session.args.raw and not log.streams and not silent:
        raise Refused(log.nothing())


@dataclass(slots=True)
class _Stream:
    """What one run has said, as far as it was read. The file is held open: sealing it removes its name."""

    run: AgentRun
    file: BinaryIO
    decoder: Decoder
    rest: bytes = field(default=b"")


class _Log:
    def __init__(self, session: Session, job_id: UUID) -> None:
        self._config = session.config
        self._raw = getattr(session.args, "raw", False)
        self._job_id = job_id
        self._last_event = 0
        self._runs: list[AgentRun] = []
        self._spoken: set[UUID] = set()
        self._redact = _redactor(session.config)
        self.streams: dict[UUID, _Stream] = {}

    def step(self, conn: Connection) -> bool:
        """Print what is new; whether the job has ended."""
        job = _require(jobs.get(conn, self._job_id))
        self._runs = runs.of_job(conn, self._job_id)
        events = jobs.events(conn, self._job_id, after=self._last_event)
        for event in events:
            self._last_event = event.id
            if not self._raw:
                print(self._redact(event_line(event)))
        for run in self._runs:
            self._say(run, ended=run.ended_at is not None)
        return job.state.terminal

    def document(self, conn: Connection) -> dict[str, Any]:
        job = _require(jobs.get(conn, self._job_id))
        events = jobs.events(conn, self._job_id)
        self._runs = runs.of_job(conn, self._job_id)
        found = [
            {
                **documents.run(run),
                "path": str(path) if (path := stream_of(self._config, run)) else None,
                "lines": [{"kind": e.kind.value, "text": self._redact(e.text)} for e in self._read(run, True)],
            }
            for run in self._runs
        ]
        return {"job": documents.job(job), "events": [documents.event(e) for e in events], "runs": found}

    def nothing(self) -> str:
        if not self._runs:
            return f"job {self._job_id} has had no agent run yet"
        hosts = ", ".join(sorted({run.host for run in self._runs}))
        return (
            f"no transcript of job {self._job_id} is on this machine ({self._config.state_dir / 'work'}); it ran on "
            f"{hosts}, and workspaces are kept for {self._config.runner.keep_workspace_days:g} days"
        )

    def silent(self, now: datetime) -> list[str]:
        """A line for each run that goes on and of which nothing was printed."""
        return [
            f"run {str(run.id)[:8]} of {run.agent} {self._silence(run)}; it has run on {clean(run.host)} since "
            f"{when(run.started_at)} ({age(run.started_at, now)})"
            for run in self._runs
            if run.ended_at is None and run.id not in self._spoken
        ]

    def _silence(self, run: AgentRun) -> str:
        here = run.id in self.streams or run.host == self._config.host
        return "has said nothing yet" if here else "keeps what it says on its own machine"

    def _say(self, run: AgentRun, ended: bool) -> None:
        if self._raw:
            for line in self._raw_lines(run, ended):
                self._spoken.add(run.id)
                print(line)
            return
        for event in self._read(run, ended):
            if event.text and event.kind is not EventKind.OTHER:
                if run.id not in self._spoken:
                    self._spoken.add(run.id)
                    print(f"-- what {run.agent} said in run {str(run.id)[:8]} on {clean(run.host)}")
                print(f"   {event.kind.value:<12} {clean(self._redact(event.text), 400)}")

    def _read(self, run: AgentRun, ended: bool) -> Iterator[Event]:
        stream = self._stream(run)
        if stream is None:
            return
        while data := stream.file.read(_CHUNK):
            yield from stream.decoder.feed(data)
        if ended:
            yield from stream.decoder.finish()

    def _raw_lines(self, run: AgentRun, ended: bool) -> Iterator[str]:
        stream = self._stream(run)
        if stream is None:
            return
        while data := stream.file.read(_CHUNK):
            *lines, stream.rest = (stream.rest + data).split(b"\n")
            yield from map(self._shown, lines)
        if ended and stream.rest:
            yield self._shown(stream.rest)
            stream.rest = b""

    def _shown(self, line: bytes) -> str:
        text = self._redact(line.decode("utf-8", "replace"))
        return clean(text) if sys.stdout.isatty() else text

    def _stream(self, run: AgentRun) -> _Stream | None:
        if run.id not in self.streams:
            path = stream_of(self._config, run)
            if path is None:
                return None
            try:
                file = open(path, "rb")  # noqa: SIM115  held open until the process ends
            except FileNotFoundError:  # sealed, or removed, at this moment
                return None
            except PermissionError:
                raise Refused(
                    f"{path} may not be read by this user; run it as root or as tireless's own"
                ) from None
            self.streams[run.id] = _Stream(run, file, adapter_for(run.agent).decoder())
        return self.streams[run.id]


def stream_of(config: Config, run: AgentRun) -> Path | None:
    """The file with what a run has said, if it is on this machine."""
    place = config.state_dir / "work" / str(run.job_id) / "run" / str(run.id)
    for name in (runfiles.TRANSCRIPT, runfiles.EVENTS):
        with contextlib.suppress(PermissionError):
            if (place / name).exists():
                return place / name
            continue
        raise Refused(f"{place} may not be read by this user; run it as root or as tireless's own")
    return None


def _require(job: Job | None) -> Job:
    if job is None:
        raise Refused("the job is gone: finished ones are pruned after poller.keep_days")
    return job


def _redactor(config: Config) -> Redactor:
    """Masks what this machine knows to be secret; a token that cannot be read cannot have been printed here."""
    values: list[str] = list(config.secrets())
    for entry in config.forge:
        with contextlib.suppress(ConfigError):
            token = with_token(config, entry, os.environ).token
            values += [token.reveal()] if token is not None else []
    for lane in config.lane.values():
        values += secrets_in(agent_environment(lane))
    return Redactor(values)
