"""A whole tireless on this machine: a forge on loopback over real git, a configuration, the real programs.

For the tests of the main path and for bin/demo: everything in it is a real process that is looked at from
outside, by rows, by `ps`, by exit codes and by the forge's own record.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.support import forge as fakes
from tests.support.files import remove_tree
from tests.support.wait import wait_until
from tireless import proctree
from tireless.config import Config, ForgeConfig, load
from tireless.entities import AgentRun, Job, JobEvent, JobState, RepoRef
from tireless.forge import client_for
from tireless.store import jobs, repos, runs
from tireless.store.queries import Connection

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTED_AGENT = CHECKOUT / "tests/support/agent/scripted.py"
TOKEN_VARIABLE = "TIRELESS_RIG_TOKEN"

# For rigs whose tests wait for what happens next: a lost notification costs no more than this.
QUICK = """
[poller]
wake_seconds = 2
[runner]
wake_seconds = 2
[lease]
backoff_seconds = 0.2
"""
# What an agent does that does its work.
WORK = (
    {"do": "write", "path": "app.txt", "text": "made by the agent\n"},
    {"do": "done", "summary": "made app.txt"},
)

README = "# acme/site\n\nA small site.\n"


def new_root() -> Path:
    return Path(tempfile.mkdtemp(prefix="tireless-rig-"))


class Supervisor:
    """A real tireless-supervisor process; what it says on stderr goes to a file."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def send(self, sig: signal.Signals) -> None:
        self.process.send_signal(sig)

    def wait(self, seconds: float = 30.0) -> int:
        """Its exit code; AssertionError with what it said if it does not end in time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"supervisor still there after {seconds} s:\n{self.said()}") from None

    def end(self) -> None:
        """Whatever state it is in, nothing of it is left."""
        tree = [self.pid, *proctree.descendants(self.pid)]
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        proctree.send([p for p in tree if p != self.pid], signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Installation:
    """tireless set up for one repository of a forge. `url`: the database; None for the embedded one under the state
    directory. `agent`: the lane's command."""

    def __init__(
        self,
        forge: ForgeConfig,
        repo: str,
        *,
        url: str | None = None,
        settings: str = "",
        agent: Sequence[str] = (sys.executable, str(SCRIPTED_AGENT)),
        claude: str = "cap = 2\nrunners = 2",
        opencode: str = "enabled = false",
        forge_settings: str = "",
        host: str = "host-a",
        env: Mapping[str, str] | None = None,
        root: Path | None = None,
    ) -> None:
        self.root = root or new_root()
        self.root.chmod(0o755)  # the embedded server runs as a user of its own under root
        self.url = url
        self.repo = repo
        self.host = host
        self.forge_config = forge
        self._settings, self._agent, self._claude, self._opencode = settings, agent, claude, opencode
        self._forge_settings = forge_settings
        self._env = dict(env or {})
        self.supervisors: list[Supervisor] = []
        self.config_path = self.write_config()

    # -- configuration and programs ---------------------------------------------------------------------

    def state_dir(self, host: str | None = None) -> Path:
        return self.root / f"state-{host or self.host}"

    def write_config(
        self,
        host: str | None = None,
        *,
        claude: str | None = None,
        opencode: str | None = None,
        settings: str | None = None,
    ) -> Path:
        host = host or self.host
        path = self.root / f"tireless-{host}.toml"
        command = ", ".join(f'"{word}"' for word in self._agent)
        entry = self.forge_config
        path.write_text(
            f'host = "{host}"\n'
            f'state_dir = "{self.state_dir(host)}"\n'
            f"{settings if settings is not None else self._settings}\n"
            f"[[forge]]\n"
            f'kind = "{entry.kind}"\nhost = "{entry.host}"\napi_url = "{entry.base_url}"\n'
            f'token_env = "{TOKEN_VARIABLE}"\n{self._forge_settings}\n'
            f"[lane.claude_code]\ncommand = [{command}]\n{claude if claude is not None else self._claude}\n"
            f"[lane.opencode]\n{opencode if opencode is not None else self._opencode}\n",
            "utf-8",
        )
        return path

    def environ(self) -> dict[str, str]:
        token = self.forge_config.token
        assert token is not None
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TIRELESS_", "SCRIPTED_"))}
        env |= {TOKEN_VARIABLE: token.reveal(), "PYTHONUNBUFFERED": "1", **self._env}
        if self.url is not None:
            env["TIRELESS_DATABASE_URL"] = self.url
        return env

    def config(self, host: str | None = None) -> Config:
        return load(self.root / f"tireless-{host or self.host}.toml", self.environ())

    def ctl(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "tireless.ctl", "--config", str(self.config_path), *args],
            env=self.environ(),
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"tireless-ctl {' '.join(args)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def repo_name(self, repo: str | None = None) -> str:
        entry = self.forge_config
        return f"{entry.kind}:{entry.host}/{repo or self.repo}"

    def add_repo(self, *options: str) -> None:
        self.ctl("repo", "add", self.repo_name(), "--interval", "5", *options)

    def track(self, **settings: Any) -> None:
        """What `add_repo` does, without starting a program for it."""
        owner, _, name = self.repo.partition("/")
        client = client_for(self.forge_config)
        found = client.get_repository(RepoRef(self.forge_config.kind, self.forge_config.host, owner, name))
        wanted = {"interval_seconds": 5, **settings}
        with self.connection() as conn:
            repos.add(conn, found.ref, repos.RepoSettings(found.clone_url, found.default_branch, **wanted))

    def start(
        self, host: str | None = None, *, wait: bool = True, env: Mapping[str, str] | None = None
    ) -> Supervisor:
        host = host or self.host
        config = self.root / f"tireless-{host}.toml"
        argv = [sys.executable, "-m", "tireless.supervisor", "--config", str(config)]
        log = self.root / f"supervisor-{host}-{len(self.supervisors)}.log"
        found = Supervisor(argv, {**self.environ(), "PYTHONPATH": str(CHECKOUT), **(env or {})}, log)
        self.supervisors.append(found)
        if wait:
            wait_until(
                lambda: "ready" in found.said() or found.process.poll() is not None, 60, "supervisor ready"
            )
            assert found.process.poll() is None, found.said()
        return found

    def poke(self) -> None:
        """Have the repositories polled now."""
        with self.connection() as conn:
            for repo in repos.tracked(conn):
                repos.make_due(conn, repo.id)

    # -- what happened -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        from tireless import embedded

        url = self.url or embedded.url_if_running(self.config())
        assert url is not None, "the embedded server does not run"
        with psycopg.connect(url, autocommit=True) as conn:
            yield conn

    def jobs(self, number: int | None = None) -> list[Job]:
        """Newest first."""
        with self.connection() as conn:
            return jobs.find(conn, number=number, limit=1000)

    def job(self, number: int) -> Job:
        return self.jobs(number)[0]

    def events(self, job: Job) -> list[JobEvent]:
        with self.connection() as conn:
            return jobs.events(conn, job.id)

    def runs(self, job: Job) -> list[AgentRun]:
        with self.connection() as conn:
            return runs.of_job(conn, job.id)

    def wait_job(self, number: int, *states: JobState, seconds: float = 45.0) -> Job:
        """The newest job of the issue, once it is in one of the states (any terminal one, if none is given)."""

        def look() -> Job | None:
            found = self.jobs(number)
            done = found and (found[0].state in states if states else found[0].state.terminal)
            return found[0] if done else None

        try:
            every = 0.02 if states else 0.1  # a look is a connection; a terminal state stays
            return wait_until(
                look, seconds, f"issue {number} is {' or '.join(states) or 'finished'}", every=every
            )
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.report()}") from None

    def wait_settled(self, seconds: float = 30.0) -> None:
        """Until every forge write is done, refused or void."""

        def settled() -> bool:
            with self.connection() as conn:
                found = conn.execute("select count(*) from forge_write where state = 'waiting'").fetchone()
            return found is not None and found[0] == 0

        wait_until(settled, seconds, "forge writes settled", every=0.1)

    def said(self) -> str:
        """All that the supervisors have logged."""
        return "".join(supervisor.said() for supervisor in self.supervisors)

    def report(self) -> str:
        """For a failed test: what is in the rows and what the supervisors said."""
        lines: list[str] = []
        with contextlib.suppress(Exception):
            for job in self.jobs():
                lines.append(
                    f"{job.issue} {job.kind} {job.state} {job.phase} attempts={job.attempts} {job.last_error}"
                )
                lines += [f"    {e.at:%H:%M:%S.%f} {e.kind} {e.detail}" for e in self.events(job)]
        lines += [s.said()[-6000:] for s in self.supervisors]
        return "\n".join(lines)

    # -- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        self.end()
        remove_tree(self.root)

    def end(self) -> None:
        """Every process of it."""
        for supervisor in self.supervisors:
            supervisor.end()
        if self.url is None:
            from tireless import embedded

            with contextlib.suppress(Exception):
                embedded.stop(self.config())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Rig(Installation):
    """An installation and a fake forge of its own, with the repository in it. `address`: where the forge listens.
    `options` are the installation's."""

    def __init__(
        self,
        *,
        kind: str = "gitea",
        files: Mapping[str, str | bytes] | None = None,
        repo: str = "acme/site",
        root: Path | None = None,
        address: str = "127.0.0.1",
        **options: Any,
    ) -> None:
        root = root or new_root()
        self.forge = fakes.start(kind, root / "forge", address=address)
        self.forge.add_repo(repo, files or {"README.md": README})
        super().__init__(self.forge.config, repo, root=root, **options)

    def open_issue(
        self, title: str, *steps: Mapping[str, Any], labels: Sequence[str] = ("tireless",), **script: Any
    ) -> int:
        """An issue whose body tells the scripted agent what to do, and a poll of its repository at once. `script`:
        further keys of the agent's script."""
        told = json.dumps({"steps": list(steps), **script})
        body = f"Please.\n\nscripted-agent: {told}\n" if steps else "Please."
        number = self.forge.open_issue(title, body, labels=list(labels), repo=self.repo)
        self.poke()
        return number

    def end(self) -> None:
        super().end()
        self.forge.close()


NewRig = Callable[..., Rig]


@contextlib.contextmanager
def rigs(url: str) -> Iterator[NewRig]:
    """Makes running rigs on one database; all are closed at the end. `settings` are added to QUICK, `track` are
    settings of the repository."""
    with contextlib.ExitStack() as stack:

        def make(settings: str = "", track: Mapping[str, Any] | None = None, **options: Any) -> Rig:
            rig = stack.enter_context(Rig(url=url, settings=QUICK + settings, **options))
            rig.start()
            rig.track(**(track or {}))
            return rig

        yield make
