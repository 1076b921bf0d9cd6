"""The mirror: up to date, by one writer at a time, through kills, outages and refusals; the token is never seen."""

from __future__ import annotations

import base64
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.wait import wait_until
from tests.workspace.world import BRANCH, JOB, World, agent, git
from tireless import proctree
from tireless.config import Secret
from tireless.workspace import (
    BadRemote,
    Cancelled,
    GitFailed,
    GitTimeout,
    Remote,
    RemoteRefused,
    RemoteUnreachable,
)

# What another process runs: one update of the mirror.
UPDATER = """
import sys
from pathlib import Path
from tireless.config import GitConfig, Secret
from tireless.entities import Forge, RepoRef
from tireless.workspace import Remote, Workspaces
state, host, url = sys.argv[1:]
token = Secret(sys.stdin.readline().strip())
print("ready", flush=True)
sys.stdin.readline()
spaces = Workspaces(Path(state), GitConfig(), 30, lambda: None, lambda: False)
spaces.update_mirror(RepoRef(Forge.GITEA, host, "acme", "site"), Remote(url, "x", token))
print("done", flush=True)
"""


def _updater(world: World) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", UPDATER, str(world.state), world.forge.host, world.remote.url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(world.forge.token + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"
    return process


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_it_follows_the_forge_and_prunes_what_is_gone(world: World) -> None:
    world.upstream.git("branch", "old", "main")
    world.upstream.git("tag", "v1", "main")
    mirror = world.spaces.update_mirror(world.repo, world.remote)
    world.upstream.git("branch", "-D", "old")
    world.upstream.git("branch", "old/nested", "main")
    world.upstream.commit("main", {"n": "1\n"}, "n")
    world.spaces.update_mirror(world.repo, world.remote)
    refs = git(mirror.path, "for-each-ref", "--format=%(refname)").split()
    assert refs == ["refs/heads/main", "refs/heads/old/nested", "refs/tags/v1"]
    assert git(mirror.path, "rev-parse", "main") == world.upstream.sha("main")


def test_a_history_that_the_forge_rewrote_is_followed(world: World) -> None:
    mirror = world.spaces.update_mirror(world.repo, world.remote)
    world.upstream.git("update-ref", "-d", "refs/heads/main")
    world.upstream.commit("main", {"anew": "1\n"}, "anew")
    world.spaces.update_mirror(world.repo, world.remote)
    assert git(mirror.path, "rev-parse", "main") == world.upstream.sha("main")


def test_two_processes_at_once(world: World) -> None:
    processes = [_updater(world) for _ in range(2)]
    for process in processes:
        _go(process)
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert (out, process.returncode) == ("done\n", 0), err
    assert git(world.spaces.mirror_of(world.repo).path, "rev-parse", "main") == world.upstream.sha("main")


def test_a_fetch_killed_half_way_costs_nothing_but_itself(world: World) -> None:
    """The runner is killed while git waits for a slow pack: its git goes with it, and what that left is swept."""
    world.upstream.commit("main", {f"f{i}": os.urandom(3000).hex() for i in range(30)}, "bulk")
    world.forge.fail(match="POST .*git-upload-pack", times=None, slow=0.0002)
    process = _updater(world)
    _go(process)
    mirror = world.spaces.mirror_of(world.repo)
    wait_until(lambda: list(mirror.path.glob("objects/pack/tmp_pack_*")), 60, "a pack half-way in")
    gits = proctree.descendants(process.pid)
    process.kill()
    process.communicate(timeout=10)
    wait_until(lambda: not [pid for pid in gits if proctree.start_ticks(pid)], 10, "git is gone")
    (mirror.path / "packed-refs.lock").touch()  # and at its worst moment
    (mirror.path / "refs/heads").mkdir(exist_ok=True, parents=True)
    (mirror.path / "refs/heads/main.lock").touch()
    world.forge.clear_faults()
    world.spaces.update_mirror(world.repo, world.remote)
    assert git(mirror.path, "rev-parse", "main") == world.upstream.sha("main")
    assert not list(mirror.path.rglob("tmp_*")) + list(mirror.path.rglob("*.lock"))
    assert git(mirror.path, "fsck") == ""


def test_the_lock_outlives_a_killed_runner_while_its_git_writes(world: World, tmp_path: Path) -> None:
    """Nobody sweeps under a git that is still at work: the lock is the git's too."""
    mirror = world.spaces.update_mirror(world.repo, world.remote)
    spaces = world.workspaces(timeout=0.5)
    with spaces._mirrors.locked(mirror) as lock:
        orphan = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,))
    try:
        with pytest.raises(GitTimeout, match="waiting for the lock"):
            spaces.update_mirror(world.repo, world.remote)
    finally:
        orphan.communicate(timeout=10)
    world.spaces.update_mirror(world.repo, world.remote)


def test_while_git_waits_the_loop_is_seen_turning_and_can_stop_it(world: World) -> None:
    world.forge.fail(match="git-upload-pack", times=None, delay=60)
    started = time.monotonic()
    last: list[float] = []
    gaps: list[float] = []
    before = set(proctree.descendants(os.getpid()))
    seen: set[int] = set()

    def stop() -> bool:
        now = time.monotonic()
        gaps.append(now - last[-1] if last else 0.0)
        last.append(now)
        seen.update(set(proctree.descendants(os.getpid())) - before)
        return now - started > 2.5

    world.stop = stop
    with pytest.raises(Cancelled):
        world.spaces.update_mirror(world.repo, world.remote)
    assert world.beats >= 8
    assert max(gaps) < 1.0
    assert len(seen) >= 2  # git and git-remote-http
    assert not [pid for pid in seen if proctree.start_ticks(pid) is not None]


def test_a_git_that_takes_too_long_is_ended(world: World) -> None:
    world.forge.fail(match="git-upload-pack", times=None, delay=60)
    before = set(proctree.descendants(os.getpid()))
    with pytest.raises(GitTimeout, match=r"git fetch took longer than 1 s"):
        world.workspaces(timeout=1).update_mirror(world.repo, world.remote)
    assert set(proctree.descendants(os.getpid())) <= before


def test_an_exception_of_the_beat_ends_git_too(world: World) -> None:
    world.forge.fail(match="git-upload-pack", times=None, delay=60)
    before = set(proctree.descendants(os.getpid()))

    def stop() -> bool:
        if len(set(proctree.descendants(os.getpid())) - before) >= 2:
            raise KeyError("the claim is lost")
        return False

    world.stop = stop
    with pytest.raises(KeyError):
        world.spaces.update_mirror(world.repo, world.remote)
    assert set(proctree.descendants(os.getpid())) <= before


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"status": 401}, RemoteRefused), ({"status": 403}, RemoteRefused), ({"status": 404}, RemoteRefused),
        ({"status": 429}, RemoteUnreachable), ({"status": 500}, RemoteUnreachable),
        ({"status": 503}, RemoteUnreachable),
        ({"hang_up": True}, RemoteUnreachable), ({"cut": 100}, RemoteUnreachable),
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["GET .*info/refs", "POST .*git-upload-pack"])
def test_what_the_forge_s_answers_come_to(
    world: World, where: str, fault: dict[str, object], error: type[Exception]
) -> None:
    world.forge.fail(match=where, times=None, **fault)
    with pytest.raises(error):
        world.spaces.update_mirror(world.repo, world.remote)
    world.forge.clear_faults()
    world.spaces.update_mirror(world.repo, world.remote)


def test_a_wrong_token_and_none_are_refusals(world: World) -> None:
    for token in (Secret("wrong"), None):
        with pytest.raises(RemoteRefused, match="no token that it accepts"):
            world.spaces.update_mirror(world.repo, Remote(world.remote.url, "x", token))


def test_a_forge_that_is_down_and_a_name_that_is_nobody_s(world: World) -> None:
    world.forge.down()
    with pytest.raises(RemoteUnreachable):
        world.spaces.update_mirror(world.repo, world.remote)
    with pytest.raises(RemoteUnreachable):
        world.spaces.update_mirror(world.repo, Remote("http://nobody.invalid/x.git"))


def test_a_redirect_is_not_followed_and_the_token_stays(world: World) -> None:
    from tests.support.forge import start

    with start("gitea", token="other") as other:
        other.add_repo("acme/site")
        target = f"{other.url}/acme/site.git/info/refs?service=git-upload-pack"
        world.forge.fail(match="info/refs", status=302, headers={"Location": target}, times=None)
        with pytest.raises(RemoteRefused, match="may have moved"):
            world.spaces.update_mirror(world.repo, world.remote)
        assert other.requests == []


@pytest.mark.parametrize(
    "url",
    ["ssh://git@h/x", "git@h:o/r.git", "/srv/x.git", "file:///srv/x.git", "ext::sh", "http://", "https://u:p@h/x",
     "https://t0ken@h/x", "http://h/x y", "--upload-pack=x"],
)  # fmt: skip
def test_remotes_that_are_not_plain_http_are_refused(url: str) -> None:
    with pytest.raises(BadRemote) as caught:
        Remote(url)
    assert "u:p" not in str(caught.value)
    assert "t0ken" not in str(caught.value)


def test_objects_from_the_forge_are_checked(world: World) -> None:
    """A tree with an entry named .git comes no further than the door."""
    blob = world.upstream.git("hash-object", "-w", "--stdin", stdin=b"evil")
    sub = world.upstream.git("mktree", stdin=f"100644 blob {blob}\tconfig\n".encode())
    tree = world.upstream.git("mktree", stdin=f"040000 tree {sub}\t.git\n".encode())
    world.upstream.git("update-ref", "refs/heads/main", world.upstream.git("commit-tree", "-m", "evil", tree))
    with pytest.raises(GitFailed, match="hasDotgit"):
        world.spaces.update_mirror(world.repo, world.remote)


def test_mistakes_of_old_tools_are_forgiven_to_the_forge(world: World) -> None:
    tree = world.upstream.git("rev-parse", "main^{tree}")
    raw = f"tree {tree}\nauthor a<a@b> 1 +051800\ncommitter a <a@b> 1 +051800\n\nold\n".encode()
    commit = world.upstream.git("hash-object", "-w", "-t", "commit", "--literally", "--stdin", stdin=raw)
    world.upstream.git("update-ref", "refs/heads/main", commit)
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    world.upstream.git("config", "receive.fsckObjects", "false")
    assert world.deliver(checkout, mirror).changed


def test_names_of_repositories_are_only_names(world: World) -> None:
    root = world.state / "mirrors"
    repo = type(world.repo)(world.repo.forge, "h:3000", "a/b", "../..")
    assert world.spaces.mirror_of(repo).path == root / "gitea/h%3A3000/a%2Fb/..%2F...git"
    with pytest.raises(Exception, match="cannot be part"):
        world.spaces.mirror_of(type(repo)(repo.forge, "h", "..", "x"))


def test_the_token_is_nowhere_to_be_seen(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Not in a file, an argument, a log line or an error: in the environment of the git that speaks, alone."""
    caplog.set_level(logging.DEBUG)
    token = world.forge.token
    forms = [token.encode(), base64.b64encode(f"x-access-token:{token}".encode())]
    watch = _Watch(forms)
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    collected = world.collect(checkout, mirror)
    errors = []
    for match in ("git-upload-pack", "git-receive-pack"):
        for fault in ({"status": 403, "body": forms[0] + b" " + forms[1]}, {"delay": 60}):
            world.forge.clear_faults()
            world.forge.fail(match=match, times=None, **fault)
            spaces = world.workspaces(timeout=1.5)
            speak: Callable[[], object] = partial(spaces.update_mirror, world.repo, world.remote)
            if match == "git-receive-pack":
                speak = partial(spaces.push, mirror, world.remote, JOB, BRANCH, collected.head_commit, "main")
            with watch, pytest.raises((RemoteRefused, GitTimeout)) as caught:
                speak()
            errors.append(f"{caught.value!s} {caught.value!r} {caught.getrepr(style='short')} {world.remote!r}")
    assert watch.processes_with_token_in_environment > 0
    assert watch.arguments_with_token == []
    shown = "\n".join([*errors, caplog.text]).encode()
    files = [path for path in world.state.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 20
    for form in forms:
        assert form not in shown
        assert [path for path in files if form in path.read_bytes()] == []


class _Watch:
    """Looks at every process of this machine for as long as it is entered."""

    def __init__(self, forms: list[bytes]) -> None:
        self._forms = forms
        self.arguments_with_token: list[bytes] = []
        self.processes_with_token_in_environment = 0

    def __enter__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            for pid in proctree.descendants(os.getpid()):
                arguments, environment = _read(pid, "cmdline"), _read(pid, "environ")
                if any(form in arguments for form in self._forms):
                    self.arguments_with_token.append(arguments)
                if any(form in environment for form in self._forms):
                    self.processes_with_token_in_environment += 1


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def test_nothing_of_our_environment_reaches_git(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f'[core]\n\tfsmonitor = "touch {canary}"\n[url "http://evil.invalid/"]\n\tinsteadOf = http'
    )
    (home / ".netrc").write_text("machine 127.0.0.1 login a password wrong\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_TRACE", str(canary))
    monkeypatch.setenv("GIT_TRACE_CURL", str(canary))
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(home))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {canary}")
    monkeypatch.setenv("GIT_ASKPASS", f"touch {canary}")
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    world.deliver(checkout, mirror)
    assert not canary.exists()


def test_a_full_disk_is_said_and_passes(world: World, tmp_path: Path) -> None:
    """A small file system of its own, full: DiskFull, and the next try works once there is room."""
    from tireless.workspace import DiskFull

    small = tmp_path / "small"
    small.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(small)], capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"no right to mount a small file system: {made.stderr.decode().strip()}")
    try:
        world.state = small / "state"
        spaces = world.workspaces()
        world.upstream.commit("main", {"big": os.urandom(1_000_000).hex()}, "big")
        with pytest.raises(DiskFull, match="No space left"):
            spaces.update_mirror(world.repo, world.remote)
        subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
        spaces.update_mirror(world.repo, world.remote)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_git_outlived_by_nobody(world: World) -> None:
    """A runner that gets KILL takes its git along."""
    world.forge.fail(match="git-upload-pack", times=None, delay=60)
    process = _updater(world)
    _go(process)
    gits = wait_until(lambda: proctree.descendants(process.pid), 10, "git runs")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    wait_until(lambda: proctree.start_ticks(gits[0]) is None, 5, "git is gone")
