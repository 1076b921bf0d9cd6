"""The main job, end to end, shown as it happens: what `bin/demo` runs.

An embedded Postgres and a forge on loopback (Gitea's API over a real bare git repository, served by
`git http-backend`) are started, the repository is registered with tireless-ctl, the real supervisor is started,
and an issue is opened with the label that a person would set. All that is shown is read from the rows and from
the forge. It ends with the pull request, exit 0, and leaves no process and no file behind, interrupted or not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from tests.support.files import remove_tree
from tests.support.rig import CHECKOUT, SCRIPTED_AGENT, Rig
from tests.support.wait import wait_until
from tireless import embedded, proctree
from tireless.entities import AgentKind, Job, JobEvent, JobState
from tireless.store import lanes

TITLE = "The greeting should know its reader"
BODY = """`greet.py` prints the same words for everybody. It should take a name and greet that:

    $ python3 greet.py Ada
    Hello, Ada!

Without a name it should go on to greet the world.
"""
FILES = {
    "README.md": "# greeter\n\nGreets people.\n\n    python3 greet.py\n",
    "greet.py": 'print("Hello, world!")\n',
}
SCRIPT = """{"steps": [
  {"do": "say", "text": "I will read greet.py and teach it a name."},
  {"do": "shell", "command": "cat greet.py README.md"},
  {"do": "write", "path": "greet.py",
   "text":
     "import sys\\n\\nname = sys.argv[1] if len(sys.argv) > 1 else \\"world\\"\\nprint(f\\"Hello, {name}!\\")\\n"},
  {"do": "shell", "command": "python3 greet.py Ada"},
  {"do": "commit", "message": "greet.py takes the name of its reader"},
  {"do": "append", "path": "README.md", "text": "\\nWith a name it greets that reader: `python3 greet.py Ada`.\\n"},
  {"do": "done", "summary": "greet.py greets the name that it is given, and the world without one."}],
 "cost": 0.0421}"""

SETTINGS = """
[poller]
interval_seconds = 5
wake_seconds = 1
[runner]
wake_seconds = 1
"""


class Interrupted(Exception):
    """A signal asked the demo to stop; everything is cleaned up on the way out."""


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_END_SECONDS = 25.0  # for the demo to end by itself once it was asked to


def main(argv: Sequence[str]) -> int:
    """The demo runs in a child. This process only waits, passes signals on, and at the end, however it came about,
    ends what is left below it (it is the subreaper of all of it) and removes the demo's directory."""
    args = _arguments(argv)
    root = Path(tempfile.mkdtemp(prefix="tireless-demo-"))
    proctree.become_subreaper()
    child = os.fork()
    if child == 0:
        os._exit(_child(args, root, os.getppid()))
    asked: list[int] = []
    for sig in _SIGNALS:
        signal.signal(sig, lambda number, _: asked.append(number))
    try:
        return _await(child, asked)
    finally:
        proctree.kill_all(_all_below, 10.0)
        remove_tree(root)


def _await(child: int, asked: list[int]) -> int:
    told, deadline = 0, float("inf")
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) if not told else 130
        if len(asked) > told:
            told = len(asked)
            deadline = min(deadline, time.monotonic() + _END_SECONDS)
            os.kill(child, asked[-1])
        if time.monotonic() >= deadline:
            return 130
        signal.sigtimedwait([signal.SIGCHLD], 0.1)


def _all_below() -> list[int]:
    found = proctree.descendants(os.getpid())
    proctree.reap_orphans()
    return found


def _child(args: argparse.Namespace, root: Path, parent: int) -> int:
    for sig in _SIGNALS:
        signal.signal(sig, _interrupt)
    os.setsid()  # Ctrl-C in a terminal reaches the parent alone, which passes it on once
    proctree.die_with_parent(signal.SIGTERM, parent)
    code = 1
    try:
        with _rig(args.agent, root) as rig:
            try:
                code = Demo(rig, args.agent, args.timeout).run()
            finally:
                for sig in _SIGNALS:  # what follows is the cleaning up
                    signal.signal(sig, signal.SIG_IGN)
    except Interrupted as e:
        print(f"\ninterrupted ({e}); everything is cleaned up", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # who read along has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        code = 130
    except SystemExit as e:
        print(e, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    return code


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bin/demo", description="A labelled issue becomes a pull request.")
    parser.add_argument(
        "--agent",
        choices=["scripted", *(kind.value for kind in AgentKind)],
        default="scripted",
        help="the agent: a scripted one (default), or a real CLI that is on the PATH and logged in",
    )
    parser.add_argument(
        "--timeout", type=float, default=None, help="seconds to wait for the result (60; 900 with a real agent)"
    )
    args = parser.parse_args(argv)
    if args.timeout is None:
        args.timeout = 60.0 if args.agent == "scripted" else 900.0
    if args.agent != "scripted":
        program = {"claude_code": "claude", "opencode": "opencode"}[args.agent]
        if shutil.which(program) is None:
            parser.error(
                f"--agent {args.agent} needs `{program}` on the PATH; install it, or leave --agent out"
            )
        if not _keys(args.agent):
            parser.error(
                f"--agent {args.agent} works in a home of its own, so it needs its key in the environment: export "
                f"{' or '.join(KEYS[args.agent])}, or leave --agent out"
            )
    return args


KEYS = {
    "claude_code": ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"),
    "opencode": ("ANTHROPIC_API_KEY", "OPENCODE_CONFIG_CONTENT"),
}


def _keys(agent: str) -> list[str]:
    """Of what a real agent may be given, what there is."""
    return [name for name in KEYS[agent] if os.environ.get(name)]


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(signal.Signals(number).name)


def _rig(agent: str, root: Path) -> Rig:
    if agent == "scripted":
        script = SCRIPT.replace("\n", " ").replace("'", "\\u0027")
        lane = f"cap = 1\nrunners = 1\nenv = {{ SCRIPTED_AGENT = '{script}' }}"
        return Rig(files=FILES, repo="acme/greeter", settings=SETTINGS, claude=lane, root=root)
    passed = [*_keys(agent), *(name for name in ("ANTHROPIC_BASE_URL",) if os.environ.get(name))]
    real = f"cap = 1\nrunners = 1\nenv_from = {json.dumps(passed)}"
    table = f'[routing]\nimplement = "{agent}"\n'
    off = "enabled = false"
    return Rig(
        files=FILES,
        repo="acme/greeter",
        settings=SETTINGS + table,
        agent=("claude",),
        claude=real if agent == "claude_code" else off,
        opencode=real if agent == "opencode" else off,
        root=root,
    )


class Demo:
    def __init__(self, rig: Rig, agent: str, timeout: float) -> None:
        self._rig = rig
        self._agent = agent
        self._timeout = timeout
        self._shown = 0

    def run(self) -> int:
        rig = self._rig
        self._say("postgres", "starting an embedded server", "of its own under the demo's state directory")
        embedded.start(rig.config())
        self._say("forge", f"a Gitea on loopback at {rig.forge.url}", f"with the repository {rig.repo}")
        rig.ctl("migrate")
        rig.add_repo()
        self._say("ctl", f"tireless-ctl repo add {rig.repo_name()}")
        supervisor = rig.start()
        self._say("supervisor", f"tireless-supervisor is ready, pid {supervisor.pid}")
        number = rig.forge.open_issue(TITLE, BODY, labels=["tireless"])
        self._say("person", f"opens issue #{number} with the label `tireless`", f'"{TITLE}"')
        job = self._watch(number)
        rig.wait_settled(20)
        self._events(job)
        good = self._result(number, rig.job(number))
        supervisor.send(signal.SIGTERM)
        code = supervisor.wait(30)
        self._say("supervisor", f"drained, exit {code}")
        return 0 if good and code == 0 else 1

    def _watch(self, number: int) -> Job:
        deadline = time.monotonic() + self._timeout

        def look() -> Job | None:
            found = self._rig.jobs(number)
            if not found:
                return None
            self._events(found[0])
            self._give_up_if_held(found[0])
            return found[0] if found[0].state.terminal else None

        try:
            return wait_until(look, max(deadline - time.monotonic(), 1), "the job to end")
        except AssertionError as e:
            print(self._rig.report(), file=sys.stderr)
            raise SystemExit(f"demo: {e}") from None

    def _give_up_if_held(self, job: Job) -> None:
        """A lane that is held starts nothing before somebody has acted, or some hours have passed."""
        with self._rig.connection() as conn:
            held = [lane.hold_reason for lane in lanes.all_lanes(conn) if lane.lane is job.lane and lane.held]
        if held and job.state is JobState.PENDING:
            raise SystemExit(f"demo: the agent cannot work now: {held[0]}. Mend that, and run the demo again")

    def _events(self, job: Job) -> None:
        for event in self._rig.events(job)[self._shown :]:
            self._shown += 1
            line = describe(event)
            if line is not None:
                self._say("tireless", *line, at=event.at)

    def _result(self, number: int, job: Job) -> bool:
        forge, git = self._rig.forge, self._rig.forge.git()
        pulls = forge.pulls()
        if job.state is not JobState.DELIVERED or len(pulls) != 1:
            print(self._rig.report(), file=sys.stderr)
            print(f"demo: the job is {job.state}: {job.last_error}", file=sys.stderr)
            return False
        pull = pulls[0]
        assert job.branch is not None
        stat = git.git("diff", "--stat", f"main...{job.branch}")
        _section(
            f"pull request #{pull.number}", f"branch  {job.branch}", f"title   {pull.title}", "", pull.body
        )
        _section(
            "diff", stat.rstrip(), "", git.git("log", "--format=%h %an: %s", f"main..{job.branch}").rstrip()
        )
        for comment in forge.comments(number):
            _section(f"comment of {comment.author} on issue #{number}", comment.body)
        _section("labels of the issue", ", ".join(forge.labels(number)))
        _section("tireless-ctl show", self._rig.ctl("show", str(job.id)).stdout.rstrip())
        return True

    def _say(self, who: str, what: str, more: str = "", *, at: datetime | None = None) -> None:
        clock = (at or datetime.now(UTC)).astimezone().strftime("%H:%M:%S.%f")[:-3]
        print(f"{clock}  {who:<11} {what}{'  ' + more if more else ''}", flush=True)


def _section(title: str, *lines: str) -> None:
    print(f"\n--- {title}")
    for line in lines:
        print("\n".join(f"    {part}" if part else "" for part in line.split("\n")), flush=True)


def describe(event: JobEvent) -> tuple[str, str] | None:
    """An event in a few words, and its particulars; None for what is of no interest here."""
    d = event.detail
    texts: dict[str, Callable[[], tuple[str, str]]] = {
        "enqueued": lambda: ("queued", f"lane {d.get('lane')}"),
        "claimed": lambda: ("claimed", f"slot {d.get('slot')}, attempt {d.get('attempt')}"),
        "started": lambda: ("running", ""),
        "phase": lambda: (f"next phase: {d.get('phase')}", ""),
        "agent_started": lambda: ("agent started", f"session {str(d.get('session'))[:8]}"),
        "agent_ended": lambda: (f"agent {d.get('outcome')}", f"{d.get('cost_usd', 0):.4f} USD"),
        "write_done": lambda: (f"forge: {d.get('op')}", _told(d.get("result") or {})),
        "write_refused": lambda: (f"forge refused: {d.get('op')}", str(d.get("why"))),
        "finished": lambda: (f"{d.get('state')}", str(d.get("why") or "")),
    }
    found = texts.get(event.kind)
    return found() if found is not None else (event.kind, str(d.get("why") or ""))


def _told(result: dict[str, object]) -> str:
    return str(result.get("url") or result.get("label") or "")


if __name__ == "__main__":
    os.chdir(CHECKOUT)
    assert SCRIPTED_AGENT.is_file()
    sys.exit(main(sys.argv[1:]))
