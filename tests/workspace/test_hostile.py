"""A workspace that was left to do harm: nothing of it runs with tireless's rights, nothing outside is read or pushed.

Each trick plants a bait: a command that would leave a file outside, or a way to a secret outside. `springs` is what a
careless supervisor would do there; where it is given, the test shows first that the bait works.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workspace.world import BRANCH, World, agent, every_object
from tireless.workspace import Checkout, Mirror, UnsafeWorkspace

SECRET = "the-secret-that-lies-outside"


@dataclass(frozen=True)
class Trap:
    """Things outside of the checkout: a directory for canaries, a secret file, another repository with a secret."""

    outside: Path

    @property
    def canary(self) -> Path:
        return self.outside / "canary"

    @property
    def script(self) -> Path:
        return self.outside / "bait.sh"

    @property
    def deaf(self) -> Path:
        """The bait for what talks to the command that it starts."""
        return self.outside / "deaf.sh"

    @property
    def secret(self) -> Path:
        return self.outside / "secret"

    @property
    def repository(self) -> Path:
        return self.outside / "other.git"


@dataclass(frozen=True)
class Trick:
    name: str
    plant: Callable[[Checkout, Trap], None]
    springs: str | None = None


@pytest.fixture(scope="module")
def other_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the secret in it."""
    made = tmp_path_factory.mktemp("other")
    (made / "secret").write_text(SECRET)
    script = f"""
        git init -q --bare --template= other.git
        export GIT_DIR=other.git
        blob=$(git hash-object -w secret)
        tree=$(printf '100644 blob %s\\tsecret\\n' $blob | git mktree)
        git update-ref refs/heads/main $(git commit-tree -m {SECRET} $tree)
        git repack -adq
    """
    who = {f"GIT_{role}_{key}": "a" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    subprocess.run(["bash", "-ec", script], cwd=made, check=True, env={**os.environ, **who}, timeout=30)
    return made / "other.git"


@pytest.fixture
def trap(tmp_path: Path, other_repository: Path) -> Trap:
    made = Trap(tmp_path / "outside")
    made.outside.mkdir()
    made.secret.write_text(SECRET)
    made.script.write_text(f"#!/bin/sh\ntouch '{made.canary}'\ncat\n")
    made.deaf.write_text(f"#!/bin/sh\ntouch '{made.canary}'\nexit 1\n")
    made.script.chmod(0o755)
    made.deaf.chmod(0o755)
    shutil.copytree(other_repository, made.repository)
    return made


def config(*lines: str) -> Callable[[Checkout, Trap], None]:
    def plant(checkout: Checkout, trap: Trap) -> None:
        text = "\n".join(lines).format(
            bait=trap.script, deaf=trap.deaf, repo=trap.repository, outside=trap.outside
        )
        with (checkout.path / ".git/config").open("a") as f:
            f.write(text + "\n")

    return plant


def both(*plants: Callable[[Checkout, Trap], None]) -> Callable[[Checkout, Trap], None]:
    def plant(checkout: Checkout, trap: Trap) -> None:
        for one in plants:
            one(checkout, trap)

    return plant


def write(path: str, text: str) -> Callable[[Checkout, Trap], None]:
    def plant(checkout: Checkout, trap: Trap) -> None:
        target = checkout.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(
            text.format(bait=trap.script, repo=trap.repository, outside=trap.outside, secret=trap.secret)
        )

    return plant


def shell(script: str) -> Callable[[Checkout, Trap], None]:
    def plant(checkout: Checkout, trap: Trap) -> None:
        agent(
            checkout,
            script,
            {"BAIT": str(trap.script), "REPO": str(trap.repository), "SECRET": str(trap.secret)},
        )

    return plant


def _hooks(checkout: Checkout, trap: Trap) -> None:
    hooks = checkout.path / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "pre-commit", "post-commit", "post-index-change", "reference-transaction", "pre-push", "post-checkout",
        "prepare-commit-msg", "commit-msg", "post-merge", "pre-auto-gc", "push-to-checkout", "fsmonitor-watchman",
    ):  # fmt: skip
        shutil.copy(trap.script, hooks / name)


def _nested_with_monitor(checkout: Checkout, trap: Trap) -> None:
    """`git add` and `git status` look into a nested repository, under its own configuration."""
    script = """
        git init -q dep; echo x > dep/x; git -C dep add x; git -C dep commit -qm x
        git -c advice.addEmbeddedRepo=false add dep; git commit -qm dep; echo y > dep/x
        git -C dep config core.fsmonitor "$BAIT"
    """
    shell(script)(checkout, trap)


TRICKS = [
    Trick("fsmonitor", config("[core]", "fsmonitor = {bait}"), "git status"),
    Trick("hooks", _hooks, "git commit -q --allow-empty -m x"),
    Trick("hooksPath", both(_hooks, shell("mv .git/hooks hk"), config("[core]", "hooksPath = hk")),
          "git commit -q --allow-empty -m x"),
    Trick("filter", both(write(".gitattributes", "README.md filter=evil\n"), write("README.md", "changed\n"),
                         config('[filter "evil"]', "clean = {bait}", "smudge = {bait}", "required")), "git add -A"),
    Trick("filter in info", both(write(".git/info/attributes", "* filter=evil\n"),
                                 config('[filter "evil"]', "process = {bait}")), "git add -A || true"),
    Trick("diff driver", both(write(".gitattributes", "* diff=evil\n"),
                              config('[diff "evil"]', "textconv = {bait}", "command = {bait}")),
          "echo more >> README.md; git diff"),
    Trick("merge driver", both(write(".gitattributes", "* merge=evil\n"), config('[merge "evil"]', "driver = {bait}"))),
    Trick("include", both(write(".git/more", "[core]\nfsmonitor = {bait}\n"), config("[include]", "path = more")),
          "git status"),
    Trick("worktree config", both(config("[extensions]", "worktreeConfig = true"),
                                  write(".git/config.worktree", "[core]\nfsmonitor = {bait}\n")), "git status"),
    Trick("sshCommand", config("[core]", "sshCommand = {deaf}", '[url "ssh://evil.invalid/"]', "insteadOf = http://",
                               "insteadOf = /"), "git ls-remote http://x/y || true"),
    Trick("ext remote", config("[protocol]", "allow = always", '[url "ext::{deaf} "]', "insteadOf = http://"),
          "git ls-remote http://x/y || true"),
    Trick("promisor", both(config("[core]", "repositoryformatversion = 1", "[extensions]", "partialClone = evil",
                                  "[protocol]", "allow = always", '[remote "evil"]', "url = ext::{deaf} x",
                                  "promisor = true"),
                           shell("rm -rf .git/objects/??; T=" + "1" * 40 + "; echo $T > .git/refs/heads/gone")),
          "git cat-file -p gone || true"),
    Trick("credential helper", config("[credential]", "helper = !{bait}"),
          "printf 'protocol=http\\nhost=x\\n\\n' | GIT_TERMINAL_PROMPT=0 git credential fill || true"),
    Trick("packObjectsHook", config("[uploadpack]", "packObjectsHook = {bait}")),
    Trick("alternateRefsCommand", config("[core]", "alternateRefsCommand = {bait}"),
          "true | git receive-pack .git || true"),
    Trick("editor and gpg", config("[core]", "editor = {bait}", "[commit]", "gpgSign = true", "[gpg]",
                                   "program = {bait}"), "git commit -q --allow-empty -m x || true"),
    Trick("worktree elsewhere", config("[core]", "worktree = {outside}")),
    Trick("nested repository", _nested_with_monitor, "git status"),
    Trick("submodule to a local path", both(write(".gitmodules", '[submodule "o"]\npath = o\nurl = {repo}\n'),
          shell('git update-index --add --cacheinfo 160000,$(git -C "$REPO" rev-parse main),o; save o'))),
    Trick("links out of the tree", shell(
        'ln -s "$SECRET" link; ln -s "${SECRET%/*}" dir; save links; '
        'rm README.md; ln -s "$SECRET" README.md; rm -r src; ln -s "${SECRET%/*}" src')),
    Trick("control files are links", shell('rm .gitignore; ln -s "$SECRET" .gitignore; ln -s "$SECRET" .gitattributes; '
                                           'ln -s "$SECRET" .gitmodules; ln -s "$SECRET" .mailmap')),
    Trick("alternates", shell('echo "$REPO/objects" >> .git/objects/info/alternates; '
                              'git -C "$REPO" rev-parse main > .git/HEAD'), f"git log | grep {SECRET}"),
    Trick("http alternates", write(".git/objects/info/http-alternates", "{repo}/objects\n")),
    Trick("packs are links", shell('mkdir -p .git/objects/pack; ln -s "$REPO"/objects/pack/* .git/objects/pack/; '
                                   'git -C "$REPO" rev-parse main > .git/HEAD'), f"git log | grep {SECRET}"),
    Trick("pack directory is a link", shell('rmdir .git/objects/pack; ln -s "$REPO/objects/pack" .git/objects/pack; '
                                            'git -C "$REPO" rev-parse main > .git/HEAD'), f"git log | grep {SECRET}"),
    Trick("objects is a link", shell('mv .git/objects ../tmp/; ln -s "$REPO/objects" .git/objects; '
                                     'git -C "$REPO" rev-parse main > .git/HEAD'), f"git log | grep {SECRET}"),
    Trick("git is a link", shell('mv .git ../tmp/; ln -s "$REPO" .git'), f"git log main | grep {SECRET}"),
    Trick("git is a file", shell('mv .git ../tmp/; echo "gitdir: $REPO" > .git'), f"git log main | grep {SECRET}"),
    Trick("commondir", shell('echo "$REPO" > .git/commondir; echo "ref: refs/heads/main" > .git/HEAD'),
          f"git log main | grep {SECRET}"),
    Trick("HEAD is a link", shell('ln -sf "$SECRET" .git/HEAD')),
    Trick("HEAD is a pipe", shell("rm .git/HEAD; mkfifo .git/HEAD")),
    Trick("a branch is a link", shell('ln -sf "$SECRET" .git/refs/heads/tireless/issue-1')),
    Trick("refs is a link", shell('rm -rf .git/refs .git/packed-refs; ln -s "$REPO/refs" .git/refs; '
                                  'echo "ref: refs/heads/main" > .git/HEAD')),
    Trick("packed refs are a pipe", shell("rm -f .git/packed-refs; mkfifo .git/packed-refs; "
                                          "echo 'ref: refs/heads/odd' > .git/HEAD")),
    Trick("objects are pipes", shell(
        "D=.git/objects/ab; mkdir -p $D .git/objects/pack; mkfifo $D/" + "c" * 38 +
        " .git/objects/pack/pack-" + "d" * 40 + ".idx; echo ab" + "c" * 38 + " > .git/HEAD")),
    Trick("pipes in a nested repository", shell("mkdir -p n/.git/objects n/.git/refs m; mkfifo n/.git/HEAD m/.git; "
                                                "echo x > n/x; mkfifo n/.gitattributes")),
    Trick("replacement and graft", shell('echo y > y; save y; mkdir -p .git/info; git replace HEAD HEAD~1; '
                                         'git rev-parse HEAD > .git/info/grafts; git rev-parse HEAD > .git/shallow')),
    Trick("info exclude is a link", shell('mkdir -p .git/info; ln -sf "$SECRET" .git/info/exclude')),
    Trick("index is a link", shell('ln -sf "$SECRET" .git/index')),
    Trick("config is a pipe", shell("rm .git/config; mkfifo .git/config")),
    Trick("repository format", config("[core]", "repositoryformatversion = 99", "[extensions]", "nonsense = true")),
]  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.name)
def test_nothing_of_it_runs_and_nothing_outside_is_read_or_pushed(
    world: World, trap: Trap, trick: Trick
) -> None:
    mirror, checkout = world.start()
    (checkout.path / "x").write_text("work\n")
    trick.plant(checkout, trap)
    if trick.springs is not None:
        _show_that_it_works(checkout, trap, trick.springs)
    before = _listing(trap.outside)
    trap.canary.unlink(missing_ok=True)

    world.deliver(checkout, mirror)

    assert not trap.canary.exists()
    assert _listing(trap.outside) == before
    assert world.upstream.read(BRANCH, "x") == "work"
    _assert_no_secret(world, mirror)


def _show_that_it_works(checkout: Checkout, trap: Trap, springs: str) -> None:
    """In a copy, so that the workspace keeps what was planted."""
    copy = checkout.root / "copy"
    shutil.copytree(checkout.path, copy, symlinks=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(checkout.home), "GIT_PAGER": "cat"}
    who = {f"GIT_{role}_{key}": "a@b" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["bash", "-c", springs], cwd=copy, env={**environment, **who}, capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    sprung = trap.canary.exists() or SECRET in done.stdout
    shutil.rmtree(copy)
    trap.canary.unlink(missing_ok=True)
    assert sprung, f"the bait does not work: {done.stdout} {done.stderr}"


def _listing(root: Path) -> list[str]:
    return sorted(str(path) for path in root.rglob("*") if path.name != "canary")


def _assert_no_secret(world: World, mirror: Mirror) -> None:
    assert SECRET.encode() not in every_object(world.upstream.path)
    assert SECRET.encode() not in every_object(mirror.path)
    assert "other.git" not in world.upstream.git("log", "--format=%B", "--all")


def test_links_are_pushed_as_links(world: World, trap: Trap) -> None:
    mirror, checkout = world.start()
    agent(checkout, f"ln -s '{trap.secret}' link")
    world.deliver(checkout, mirror)
    assert world.upstream.git("ls-tree", BRANCH, "link").startswith("120000 blob")
    assert world.upstream.read(BRANCH, "link") == str(trap.secret)


def test_a_submodule_that_orders_a_command_is_refused(world: World, trap: Trap) -> None:
    """Git's check knows it; whoever updated the submodule would run the command."""
    mirror, checkout = world.start()
    _nested_with_monitor(checkout, trap)
    write(".gitmodules", '[submodule "dep"]\npath = dep\nurl = {repo}\nupdate = !{bait}\n')(checkout, trap)
    with pytest.raises(UnsafeWorkspace, match="gitmodules"):
        world.collect(checkout, mirror)
    assert not trap.canary.exists()


def test_no_git_of_ours_runs_in_the_agent_s_repository(
    world: World, trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every git that collect starts is seen, down to the ones that git starts: none has the agent's git directory as
    its own, none has it as a place to look for objects."""
    record = trap.outside / "record"
    seen = trap.outside / "bin"
    seen.mkdir()
    real = shutil.which("git")
    (seen / "git").write_text(f'#!/bin/sh\necho "$GIT_DIR|$PWD|$*" >> {record}\nexec {real} "$@"\n')
    (seen / "git").chmod(0o755)
    mirror, checkout = world.start()
    agent(checkout, "echo y > y; save y; echo x > x")
    monkeypatch.setenv("PATH", f"{seen}:{os.environ['PATH']}")
    world.collect(checkout, mirror)
    lines = record.read_text().splitlines()
    assert len(lines) > 10
    inside = f"{checkout.path}/.git"
    assert not [line for line in lines if inside in line]
    assert not [line for line in lines if line.startswith("|") and line.split("|")[1] != "/"]
