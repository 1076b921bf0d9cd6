"""A job's checkout: where it stands, what it shares, and that making it may be repeated."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.workspace.world import BRANCH, JOB, NAME, World, agent, git
from tireless.workspace import BadBranch, NoDefaultBranch
from tireless.workspace.checkout import is_agent_config


def test_a_new_branch_stands_on_the_default_branch(world: World) -> None:
    _, checkout = world.start()
    assert agent(checkout, "git symbolic-ref HEAD") == f"refs/heads/{BRANCH}"
    assert agent(checkout, "git status --porcelain") == ""
    tip = world.upstream.sha("main")
    assert (checkout.base_commit, checkout.start_commit) == (tip, tip)
    assert agent(checkout, "git rev-parse HEAD origin/main origin/HEAD main").split() == [tip] * 4


def test_earlier_work_on_the_issue_is_gone_on_with(world: World) -> None:
    base = world.upstream.sha("main")
    world.upstream.git("update-ref", f"refs/heads/{BRANCH}", base)
    earlier = world.upstream.commit(BRANCH, {"half": "done\n"}, "half")
    world.upstream.commit("main", {"meanwhile": "1\n"}, "meanwhile")
    _, checkout = world.start()
    assert (checkout.base_commit, checkout.start_commit) == (base, earlier)
    assert (checkout.path / "half").read_text() == "done\n"


def test_it_shares_objects_only_and_knows_no_remote(world: World) -> None:
    mirror, checkout = world.start()
    assert agent(checkout, "git remote") == ""
    assert agent(checkout, "find .git/objects -type f -not -path '*/info/*'") == ""
    assert (checkout.path / ".git/objects/info/alternates").read_text() == f"{mirror.path}/objects\n"
    everything = agent(checkout, "cat .git/config; git config --list; ls -R .git/hooks 2>/dev/null || true")
    assert "http" not in everything
    assert "credential" not in everything


def test_the_agent_can_commit_as_the_configured_identity(world: World) -> None:
    _, checkout = world.start()
    agent(checkout, "unset GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL; echo x > x; save x")
    assert agent(checkout, "git log -1 --format='%an <%ae>'") == "Tireless Bot <bot@example.org>"


def test_the_directories_are_ours_alone(world: World) -> None:
    _, checkout = world.start()
    for path in (checkout.root, checkout.path, checkout.home, checkout.report, checkout.run, checkout.tmp):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert path.is_relative_to(world.state / "work" / JOB)


def test_preparing_again_keeps_the_work(world: World) -> None:
    _, checkout = world.start()
    agent(checkout, "echo x > x; save x; echo y > y; git checkout -q -b elsewhere")
    world.upstream.commit("main", {"newer": "1\n"}, "newer")
    again = world.start()[1]
    assert again == checkout == world.spaces.find(JOB)
    assert agent(again, "cat y; git symbolic-ref HEAD") == "y\nrefs/heads/elsewhere"
    assert world.spaces.find("no-such-job") is None


@pytest.mark.parametrize("left", ["checkout.new", "checkout"])
def test_a_checkout_that_was_cut_off_is_made_anew(world: World, left: str) -> None:
    root = world.state / "work" / JOB
    (root / left / ".git").mkdir(parents=True)
    (root / left / "half").write_text("half")
    _, checkout = world.start()
    assert agent(checkout, "git status --porcelain; ls") == "README.md\nsrc"
    assert not (root / "checkout.new").exists()


def test_the_mirror_keeps_what_a_checkout_borrows(world: World) -> None:
    world.upstream.git("update-ref", f"refs/heads/{BRANCH}", world.upstream.sha("main"))
    world.upstream.commit(BRANCH, {"only-here": "1\n"}, "only here")
    mirror, checkout = world.start()
    world.upstream.git("update-ref", "-d", f"refs/heads/{BRANCH}")
    world.spaces.update_mirror(world.repo, world.remote)
    assert f"refs/heads/{BRANCH}" not in git(mirror.path, "for-each-ref", "--format=%(refname)")
    git(mirror.path, "gc", "--quiet", "--prune=now")  # nobody does that; even so
    assert agent(checkout, "git fsck --connectivity-only; git log -1 --format=%s") == "only here"


def test_filters_of_the_tree_do_not_run_and_submodules_are_not_fetched(world: World) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 1\n"
    world.upstream.commit("main", {".gitattributes": "*.png filter=lfs\n", "a.png": pointer}, "lfs")
    link = f"M 160000 {world.upstream.sha('main')} lib\n"
    head = f"commit refs/heads/main\ncommitter a <a@b> now\ndata 4\nlink\nfrom {world.upstream.sha('main')}\n"
    world.upstream.git("fast-import", "--quiet", "--date-format=now", stdin=(head + link).encode())
    _, checkout = world.start()
    assert (checkout.path / "a.png").read_text() == pointer
    assert list((checkout.path / "lib").iterdir()) == []


def test_an_empty_repository_has_nothing_to_start_from(world: World) -> None:
    world.forge.add_repo("acme/empty", empty=True)
    repo = world.forge.ref("acme/empty")
    remote = type(world.remote)(world.remote.url.replace(NAME, "acme/empty"), "x", world.remote.token)
    mirror = world.spaces.update_mirror(repo, remote)
    with pytest.raises(NoDefaultBranch, match="acme/empty has no branch 'main'"):
        world.spaces.prepare(mirror, JOB, BRANCH, "main")


@pytest.mark.parametrize(
    ("branch", "default"),
    [("main", "main"), ("tireless/issue-1", "Tireless/Issue-1"), ("feature", "main"), ("tireless/issue-..", "main"),
     ("tireless/issue-1.lock", "main"), ("tireless/issue-1 2", "main"), ("", "main")],
)  # fmt: skip
def test_only_branches_of_our_own_are_written_to(world: World, branch: str, default: str) -> None:
    mirror = world.spaces.update_mirror(world.repo, world.remote)
    with pytest.raises(BadBranch):
        world.spaces.prepare(mirror, JOB, branch, default)
    with pytest.raises(BadBranch):
        world.spaces.push(mirror, world.remote, JOB, branch, "0" * 40, default)


@pytest.mark.parametrize("job", ["", ".", "..", "a/b", "-x", "a b", "x" * 65])
def test_a_job_id_is_a_name(world: World, job: str) -> None:
    with pytest.raises(ValueError, match="job id"):
        world.spaces.find(job)


def _foreign_branch(world: World, files: dict[str, str]) -> str:
    world.upstream.commit("main", {"CLAUDE.md": "ours\n", ".mcp.json": "{}\n"}, "configuration")
    world.upstream.git("update-ref", f"refs/heads/{BRANCH}", world.upstream.sha("main"))
    tip = world.upstream.commit(BRANCH, files, "somebody else's")
    assert isinstance(tip, str)
    return tip


EVIL = {"CLAUDE.md": "obey\n", "sub/.claude/settings.json": "{}\n", ".MCP.json": "{}\n", "code": "1\n"}


def test_agent_configuration_comes_from_the_default_branch(world: World) -> None:
    tip = _foreign_branch(world, EVIL)
    world.upstream.commit("main", {"CLAUDE.md": "ours, newer\n"}, "newer configuration")
    mirror, checkout = world.start()
    assert agent(checkout, "cat CLAUDE.md code; git ls-files; git status --porcelain").split("\n") == [
        "ours, newer", "1", ".gitignore", ".mcp.json", "CLAUDE.md", "README.md", "code", "src/main.py",
    ]  # fmt: skip
    assert git(mirror.path, "rev-parse", f"{checkout.start_commit}^") == tip
    agent(checkout, "echo x > x")
    world.deliver(checkout, mirror)
    assert world.upstream.read(BRANCH, "x") == "x"
    assert world.upstream.read(BRANCH, "sub/.claude/settings.json") is None


def test_a_branch_that_tireless_pushed_keeps_its_configuration(world: World) -> None:
    mirror, first = world.start()
    agent(first, "echo asked for > CLAUDE.md")
    head = world.deliver(first, mirror).head_commit
    _, second = world.start("second-job")
    assert second.start_commit == head
    shutil.rmtree(world.state)
    world.spaces = world.workspaces()  # another host: it knows of the push from the database only
    mirror = world.spaces.update_mirror(world.repo, world.remote)
    third = world.spaces.prepare(mirror, JOB, BRANCH, "main", own_heads=[head])
    assert third.start_commit == head


def test_a_foreign_branch_without_configuration_is_taken_as_it_is(world: World) -> None:
    tip = _foreign_branch(world, {"code": "1\n", "docs/claude.txt": "x\n"})
    assert world.start()[1].start_commit == tip


def test_which_files_configure_an_agent() -> None:
    yes = ["CLAUDE.md", "a/claude.MD", "AGENTS.md", ".claude/hooks/x.sh", "a/.Claude", ".husky/pre-commit", ".mcp.json",
           "opencode.json", ".opencode/agent/x.md"]  # fmt: skip
    no = ["src/claude.py", "docs/agents.md.txt", "claude/x", "README.md"]
    assert [p for p in yes + no if is_agent_config(p)] == yes


def test_what_is_removed_is_gone_with_its_refs(world: World) -> None:
    mirror, checkout = world.start()
    other = world.start("other", "tireless/issue-2")[1]
    agent(checkout, "mkdir ro; echo x > ro/x; chmod 500 ro")
    world.collect(checkout, mirror)
    world.spaces.remove(JOB)
    world.spaces.remove(JOB)
    assert not checkout.root.exists()
    refs = git(mirror.path, "for-each-ref", "--format=%(refname)", "refs/tireless").split()
    assert refs == ["refs/tireless/other/base", "refs/tireless/other/start"]
    assert other.path.is_dir()


def test_garbage_is_what_has_ended_and_is_old(world: World) -> None:
    for job in ("old", "live", "young"):
        world.start(job)
    usage = world.spaces.disk_usage()
    assert usage.work > 0
    assert usage.mirrors > 0
    _age(world.state / "work/old")
    _age(world.state / "work/live")
    assert world.spaces.collect_garbage(["old", "young", "unknown"], older_than=3600) == ["old"]
    assert sorted(path.name for path in (world.state / "work").iterdir()) == ["live", "young"]
    assert world.spaces.disk_usage().work < usage.work


def test_over_its_size_the_oldest_that_have_ended_go_first(world: World) -> None:
    for age, job in enumerate(("live", "third", "second", "first")):
        world.start(job)
        (world.state / f"work/{job}/checkout/fat").write_bytes(b"x" * 1_000_000)
        _age(world.state / f"work/{job}", age)
    ended = ["second", "first", "third"]
    assert world.spaces.collect_garbage(ended, 1e12, most_bytes=100_000_000) == []
    assert world.spaces.collect_garbage(ended, 1e12, most_bytes=2_900_000) == ["third", "second"]
    assert world.spaces.collect_garbage([], 1e12, most_bytes=0) == []
    assert sorted(path.name for path in (world.state / "work").iterdir()) == ["first", "live"]


def test_a_mirror_goes_when_nobody_has_need_of_it_any_more(world: World) -> None:
    mirror, _ = world.start("job")
    shouted = dataclasses.replace(world.repo, owner=world.repo.owner.upper())
    assert world.spaces.remove_mirrors([], older_than=0) == [], "a checkout borrows from it"
    world.spaces.remove("job")
    assert world.spaces.remove_mirrors([shouted], older_than=0) == [], "tracked, however it is spelled"
    assert world.spaces.remove_mirrors([], older_than=3600) == [], "in use a moment ago"
    assert world.spaces.remove_mirrors([], older_than=0) == [world.repo]
    assert not mirror.path.exists()
    world.start("another")
    assert mirror.path.is_dir(), "tracked again, it is made anew"


def test_a_mirror_that_somebody_has_the_lock_of_stays(world: World) -> None:
    mirror = world.spaces.update_mirror(world.repo, world.remote)
    with open(mirror.lock_path) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert world.spaces.remove_mirrors([], older_than=0) == []
    assert world.spaces.remove_mirrors([], older_than=0) == [world.repo]


def test_a_newer_programs_kind_of_forge_is_left_to_it(world: World) -> None:
    (world.state / "mirrors/gerrit/host/acme/site.git").mkdir(parents=True)
    assert world.spaces.remove_mirrors([], older_than=0) == []
    assert world.spaces.collect_garbage([], older_than=0) == []


def _age(root: Path, since_epoch: float = 0) -> None:
    os.utime(root / "checkout.json", (since_epoch, since_epoch))


def test_repacking_a_mirror_drops_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, checkout = world.start()
    for i in range(3):
        world.upstream.commit("main", {"n": f"{i}\n"}, "n")
        world.spaces.update_mirror(world.repo, world.remote)
    unreachable = git(mirror.path, "commit-tree", "-m", "nobody's", "HEAD^{tree}")
    monkeypatch.setattr("tireless.workspace.mirror._TIDY_PACKS", 0)
    world.spaces.collect_garbage([], older_than=0)
    assert len(list(mirror.path.glob("objects/pack/*.pack"))) == 1
    assert git(mirror.path, "cat-file", "-t", unreachable) == "commit"
    assert agent(checkout, "git status --porcelain; git fsck --no-dangling") == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories to another user")
def test_an_agent_of_another_user_gets_its_directories_and_no_more(world: World) -> None:
    world.spaces = world.workspaces(owner=(4242, 4343))
    mirror, checkout = world.start()
    for path in (
        checkout.path / "README.md",
        checkout.path / ".git/HEAD",
        checkout.home,
        checkout.report,
        checkout.tmp,
    ):
        assert (path.stat().st_uid, path.stat().st_gid) == (4242, 4343)
    assert checkout.run.stat().st_uid == 0
    assert (mirror.path.stat().st_gid, stat.S_IMODE(mirror.path.stat().st_mode)) == (4343, 0o750)
    (checkout.path / "x").write_text("x\n")
    shutil.chown(checkout.path / "x", 4242, 4343)
    assert world.collect(checkout, mirror).changed
