"""What an agent left, honest or merely untidy, becomes what is to be pushed."""

from __future__ import annotations

import os
import zlib

import pytest

from tests.workspace.world import BRANCH, JOB, World, agent, content_at, files_at, git
from tireless.workspace import TooLarge, UnsafeWorkspace


def test_what_was_left_uncommitted_is_committed_as_us(world: World) -> None:
    mirror, checkout = world.start()
    agent(
        checkout,
        "echo changed > README.md; mkdir -p docs; echo new > docs/new.md; rm src/main.py; chmod +x README.md",
    )
    got = world.collect(checkout, mirror)
    assert files_at(mirror, got.head_commit) == [".gitignore", "README.md", "docs/new.md"]
    assert content_at(mirror, got.head_commit, "README.md") == "changed\n"
    assert git(mirror.path, "ls-tree", got.head_commit, "README.md").startswith("100755")
    about = git(mirror.path, "log", "-1", "--format=%an|%ae|%cn|%s|%P", got.head_commit)
    assert about == f"Tireless Bot|bot@example.org|Tireless Bot|What the agent left|{checkout.base_commit}"
    assert (got.changed, got.advanced, got.commits) == (True, True, 1)
    assert (got.diffstat.files, got.diffstat.insertions, got.diffstat.deletions) == (3, 2, 2)
    assert "docs/new.md" in got.diffstat.text
    assert (got.left_out, got.notes) == ((), ())


def test_ignored_files_stay_out_and_a_tracked_one_stays_in(world: World) -> None:
    world.upstream.commit("main", {"kept.log": "tracked\n"}, "a log that is tracked")
    mirror, checkout = world.start()
    agent(checkout, "mkdir build; echo x > build/out; echo x > a.log; echo more >> kept.log; echo x > plain")
    got = world.collect(checkout, mirror)
    assert files_at(mirror, got.head_commit) == [".gitignore", "README.md", "kept.log", "plain", "src/main.py"]
    assert content_at(mirror, got.head_commit, "kept.log") == "tracked\nmore\n"


def test_commits_of_the_agent_are_kept_and_the_rest_goes_on_top(world: World) -> None:
    mirror, checkout = world.start()
    agent(
        checkout,
        "echo 1 > one; save one; echo 2 > two; save two; echo 3 > three",
    )
    got = world.collect(checkout, mirror)
    subjects = git(mirror.path, "log", "--format=%s", f"{checkout.base_commit}..{got.head_commit}").splitlines()
    assert subjects == ["What the agent left", "two", "one"]
    assert got.commits == 3
    world.push(mirror, got)
    assert world.upstream.sha(BRANCH) == got.head_commit


def test_nothing_done_is_no_change(world: World) -> None:
    mirror, checkout = world.start()
    got = world.collect(checkout, mirror)
    assert (got.changed, got.advanced, got.commits) == (False, False, 0)
    assert got.head_commit == checkout.start_commit


def test_commits_that_add_up_to_nothing_are_no_change(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "echo x > x; save x; rm x; save unx")
    got = world.collect(checkout, mirror)
    assert (got.changed, got.commits) == (False, 2)


def test_collecting_again_gives_the_same_commit(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    first = world.collect(checkout, mirror)
    assert world.collect(checkout, mirror) == first
    agent(checkout, "echo y > x")
    assert world.collect(checkout, mirror).head_commit != first.head_commit


def test_the_checkout_is_left_as_it_was(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "echo x > x; echo y > y; git add y")
    before = agent(checkout, "git status --porcelain; git rev-parse HEAD; find .git -type f | sort")
    world.collect(checkout, mirror)
    assert agent(checkout, "git status --porcelain; git rev-parse HEAD; find .git -type f | sort") == before
    assert not list(checkout.root.glob("collect-*"))


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("git checkout -q --detach; echo x > x; save x", None),
        ("git checkout -q -b my-own-name; echo x > x; save x", None),
        ("echo x > x; save x; git pack-refs --all; git gc -q", None),
        ("echo x > x; save x; git repack -adq; git prune", None),
        ("echo x > x; save x; git checkout -q main", "which it had left"),
        ("echo x > x; git checkout -q --orphan fresh", "one commit"),
        ("echo x > x; rm -rf .git", "one commit"),
        ("echo x > x; printf garbage > .git/HEAD", "one commit"),
        ("echo x > x; printf garbage > .git/index", None),
        ("echo x > x; rm -rf .git/objects; mkdir .git/objects", None),
        ("echo x > x; save x; rm -rf .git/objects", "one commit"),
        ("echo x > x; save x; for f in .git/objects/??/*; do rm $f; echo bad > $f; done", "one commit"),
        ("echo x > x; printf 'ref: refs/heads/nowhere\\n' > .git/HEAD", "one commit"),
        ("echo x > x; printf 'ref: ../../../../etc/passwd\\n' > .git/HEAD", "one commit"),
        ("echo x > x; printf 'ref: HEAD\\n' > .git/HEAD", "one commit"),
        ("echo x > x; git add x; T=$(git write-tree); printf \"$T\\n\" > .git/HEAD", "one commit"),
    ],
)  # fmt: skip
def test_the_work_survives_whatever_became_of_the_git_directory(
    world: World, script: str, note: str | None
) -> None:
    mirror, checkout = world.start()
    agent(checkout, script)
    got = world.deliver(checkout, mirror)
    assert world.upstream.read(BRANCH, "x") == "x"
    assert world.upstream.changed_files("main", BRANCH) == ["x"]
    assert git(mirror.path, "merge-base", checkout.base_commit, got.head_commit) == checkout.base_commit
    notes = " ".join(got.notes)
    assert note in notes if note is not None else notes == ""


def test_unfinished_merges_are_said(world: World) -> None:
    mirror, checkout = world.start()
    script = """
        git checkout -q -b other; echo theirs > README.md; save theirs
        git checkout -q tireless/issue-1; echo ours > README.md; save ours
        git merge -q other || true
    """
    agent(checkout, script)
    got = world.collect(checkout, mirror)
    assert got.notes == ("the agent left a merge unfinished",)


def test_rewritten_history_of_an_earlier_branch_needs_no_force(world: World) -> None:
    world.upstream.commit("main", {"base": "1\n"}, "base")
    mirror, first = world.start()
    agent(first, "echo one > one; save one")
    world.deliver(first, mirror)
    earlier = world.upstream.sha(BRANCH)
    mirror, second = world.start("second-job")
    assert second.start_commit == earlier
    agent(second, "git commit -q --amend -m 'one, said better'; echo two > two")
    got = world.deliver(second, mirror)
    assert world.upstream.changed_files("main", BRANCH) == ["one", "two"]
    assert git(mirror.path, "merge-base", earlier, got.head_commit) == earlier
    assert any("rewrote history" in note for note in got.notes)
    assert world.collect(second, mirror).head_commit == got.head_commit


def test_an_unrelated_history_is_joined(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "git checkout -q --orphan fresh; echo x > x; git add x; git commit -qm 'all anew'")
    got = world.deliver(checkout, mirror)
    assert world.upstream.changed_files("main", BRANCH) == ["x"]
    assert any("rewrote history" in note for note in got.notes)


def test_a_merge_of_a_newer_default_branch_counts_only_what_is_new(world: World) -> None:
    mirror, checkout = world.start()
    world.upstream.commit("main", {"theirs": "1\n"}, "theirs")
    world.spaces.update_mirror(world.repo, world.remote)
    agent(
        checkout,
        f"echo x > x; save x; git pull -q --no-rebase --no-edit {mirror.path} main",
    )
    got = world.collect(checkout, mirror)
    assert got.diffstat.files == 1
    assert got.base_commit == world.upstream.sha("main")


def test_earlier_work_alone_is_changed_but_not_advanced(world: World) -> None:
    mirror, first = world.start()
    agent(first, "echo one > one")
    world.deliver(first, mirror)
    mirror, second = world.start("second-job")
    got = world.collect(second, mirror)
    assert (got.changed, got.advanced) == (True, False)


def test_nested_repositories_are_left_out_and_said(world: World) -> None:
    mirror, checkout = world.start()
    agent(
        checkout,
        "echo x > x; mkdir -p lib/dep empty; git init -q lib/dep; echo y > lib/dep/y; git -C lib/dep add y; "
        "git -C lib/dep commit -qm y; git init -q empty; "
        "mkdir odd; echo 'gitdir: /nonexistent' > odd/.git; echo z > odd/z; "
        "mkdir like.git; echo ref > like.git/HEAD; mkdir like.git/objects like.git/refs; echo c > like.git/config",
    )
    got = world.deliver(checkout, mirror)
    assert world.upstream.changed_files("main", BRANCH) == ["like.git/HEAD", "like.git/config", "odd/z", "x"]
    assert got.left_out == (
        ("empty/", "a git repository of its own"),
        ("lib/dep/", "a git repository of its own"),
    )


def test_a_file_that_became_a_repository_is_gone_and_said(world: World) -> None:
    mirror, checkout = world.start()
    agent(
        checkout,
        "rm README.md; git init -q README.md; git -C README.md commit -q --allow-empty -m x",
    )
    got = world.collect(checkout, mirror)
    assert files_at(mirror, got.head_commit) == [".gitignore", "src/main.py"]
    assert got.left_out == (("README.md", "a git repository of its own"),)


def test_submodules_stay_as_they_are(world: World) -> None:
    gitlink = world.upstream.sha("main")
    world.upstream.commit(
        "main", {".gitmodules": '[submodule "lib"]\n\tpath = lib\n\turl = ../lib\n'}, "modules"
    )
    script = (
        f"commit refs/heads/main\ncommitter a <a@b> now\ndata 4\nlink\nfrom {world.upstream.sha('main')}\n"
        f"M 160000 {gitlink} lib\n"
    )
    world.upstream.git("fast-import", "--quiet", "--date-format=now", stdin=script.encode())
    mirror, checkout = world.start()
    agent(checkout, "echo x > x; echo inside > lib/file; git init -q lib")
    got = world.collect(checkout, mirror)
    assert git(mirror.path, "ls-tree", got.head_commit, "lib").startswith(f"160000 commit {gitlink}")
    agent(checkout, "rm -rf lib; echo file > lib")
    got = world.collect(checkout, mirror)
    assert git(mirror.path, "ls-tree", got.head_commit, "lib").startswith(f"160000 commit {gitlink}")
    assert files_at(mirror, got.head_commit)[-1] == "x"


def test_what_a_filter_would_translate_is_left_out_but_pointers_are_taken(world: World) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12345\n"
    world.upstream.commit("main", {".gitattributes": "*.png filter=lfs -text\n", "a.png": pointer}, "lfs")
    mirror, checkout = world.start()
    assert (checkout.path / "a.png").read_text() == pointer
    agent(checkout, "cp a.png moved.png; echo pixels > a.png; echo pixels > new.png; echo x > x")
    got = world.collect(checkout, mirror)
    assert content_at(mirror, got.head_commit, "a.png") == pointer
    assert content_at(mirror, got.head_commit, "moved.png") == pointer
    assert "new.png" not in files_at(mirror, got.head_commit)
    assert {path for path, _ in got.left_out} == {"a.png", "new.png"}


def test_line_endings_follow_the_tree_s_attributes(world: World) -> None:
    world.upstream.commit("main", {".gitattributes": "*.bat text eol=crlf\n", "a.bat": "echo\n"}, "attributes")
    mirror, checkout = world.start()
    assert (checkout.path / "a.bat").read_bytes() == b"echo\r\n"
    assert not world.collect(checkout, mirror).changed
    (checkout.path / "b.bat").write_bytes(b"one\r\ntwo\r\n")
    assert content_at(mirror, world.collect(checkout, mirror).head_commit, "b.bat") == "one\ntwo\n"


def test_odd_names_and_kinds_of_files(world: World) -> None:
    mirror, checkout = world.start()
    agent(
        checkout,
        "mkfifo pipe src/.gitignore; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; "
        "echo x > $'new\\nline'; echo x > 'with space'; echo x > -dash; printf x > $'\\xff\\xfe'; "
        "mkdir .GIT sub; echo x > .GIT/config; echo x > sub/git~1; ln -s ../x sub/.gitmodules; "
        "echo unreadable > secretive; chmod 000 secretive; mkdir closed; echo x > closed/x; chmod 000 closed",
    )
    got = world.deliver(checkout, mirror)
    names = world.upstream.git("ls-tree", "-r", "--name-only", "-z", BRANCH).split("\0")
    assert {"new\nline", "with space", "-dash", "secretive", "closed/x"} <= set(names)
    assert not {"pipe", "sock", ".GIT/config", "sub/git~1", "sub/.gitmodules"} & set(names)
    assert {path for path, _ in got.left_out} == {".GIT/config", "sub/git~1", "sub/.gitmodules"}


def test_directories_and_files_and_links_may_change_places(world: World) -> None:
    mirror, checkout = world.start()
    agent(
        checkout,
        "rm README.md; mkdir README.md; echo x > README.md/x; rm -r src; ln -s README.md src; ln -s nowhere dangling",
    )
    got = world.deliver(checkout, mirror)
    assert files_at(mirror, got.head_commit) == [".gitignore", "README.md/x", "dangling", "src"]
    assert git(mirror.path, "ls-tree", got.head_commit, "src").startswith("120000")


def test_a_file_over_the_limit_is_a_clear_error(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "truncate -s 5G huge.bin")
    with pytest.raises(TooLarge, match=r"huge\.bin has 5368709120 bytes; .* 104857600 at most"):
        world.collect(checkout, mirror)
    agent(checkout, "echo huge.bin > .gitignore")
    assert world.collect(checkout, mirror).changed


def test_a_committed_file_over_the_limit_is_a_clear_error(world: World) -> None:
    world.spaces = world.workspaces(max_blob_bytes=100_000, max_new_bytes=250_000)
    mirror, checkout = world.start()
    agent(
        checkout,
        "head -c 100001 /dev/zero > big.bin; save big; rm big.bin; save unbig",
    )
    with pytest.raises(TooLarge, match=r"big\.bin has 100001 bytes"):
        world.collect(checkout, mirror)


def test_all_that_is_new_together_has_a_limit(world: World) -> None:
    world.spaces = world.workspaces(max_blob_bytes=100_000, max_new_bytes=250_000)
    mirror, checkout = world.start()
    agent(checkout, "for i in 1 2 3; do head -c 90000 /dev/zero > $i; done")
    with pytest.raises(TooLarge, match="all that is new together has 270000"):
        world.collect(checkout, mirror)
    agent(checkout, "for i in 1 2 3; do echo $i >> $i; save $i; done")
    with pytest.raises(TooLarge, match="all that is new together"):
        world.collect(checkout, mirror)


def test_an_object_that_hides_its_size_or_its_name_is_no_history(world: World) -> None:
    mirror, checkout = world.start()
    commit = agent(checkout, "echo x > x; save x; git rev-parse HEAD")
    blob = agent(checkout, "git rev-parse HEAD:x")
    path = checkout.path / ".git/objects" / blob[:2] / blob[2:]
    path.chmod(0o600)
    path.write_bytes(zlib.compress(b"blob 2\0" + b"another content" * 1000))
    got = world.collect(checkout, mirror)
    assert commit not in git(mirror.path, "rev-list", "--all").split()
    assert content_at(mirror, got.head_commit, "x") == "x\n"
    path.write_bytes(zlib.compress(b"blob 2\0y\n"))
    assert content_at(mirror, world.collect(checkout, mirror).head_commit, "x") == "x\n"


def test_what_fails_the_check_is_no_history(world: World) -> None:
    """A tree with an entry named .git would be written into the git directory of whoever checks it out."""
    mirror, checkout = world.start()
    script = """
        blob=$(echo evil | git hash-object -w --stdin)
        sub=$(printf '100644 blob %s\\tconfig\\n' $blob | git mktree)
        tree=$(printf '040000 tree %s\\t.git\\n100644 blob %s\\tx\\n' $sub $blob | git mktree)
        git update-ref HEAD $(git commit-tree -m evil -p HEAD $tree)
        echo x > x
    """
    agent(checkout, script)
    got = world.deliver(checkout, mirror)
    assert got.notes != ()
    assert world.upstream.changed_files("main", BRANCH) == ["x"]


def test_a_checkout_that_is_no_directory_is_refused(world: World) -> None:
    mirror, checkout = world.start()
    checkout.path.rename(checkout.root / "moved")
    checkout.path.symlink_to("/etc")
    with pytest.raises(UnsafeWorkspace, match="no longer a directory"):
        world.collect(checkout, mirror)


def test_a_control_file_too_large_to_be_read_whole_is_refused(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "truncate -s 2G src/.gitattributes")
    with pytest.raises(UnsafeWorkspace, match="2147483648 bytes"):
        world.collect(checkout, mirror)


def test_a_tree_too_deep_to_be_named_is_refused_and_removed(world: World) -> None:
    mirror, checkout = world.start()
    descriptor = os.open(checkout.path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deep", dir_fd=descriptor)
        inner = os.open("deep", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    try:
        with pytest.raises(UnsafeWorkspace, match="cannot be read to its end"):
            world.collect(checkout, mirror)
    finally:
        world.spaces.remove(JOB)  # Python's own rmtree cannot
    assert not checkout.root.exists()


def test_a_tree_of_gigabytes_does_not_take_the_host_s_memory(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A file of some bytes that says it is a tree of three gigabytes: git's one allocation for it is refused."""
    mirror, checkout = world.start()
    name = "ab" * 20
    target = checkout.path / ".git/objects" / name[:2] / name[2:]
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(zlib.compress(b"tree %d\0" % (3 * 1024**3)))
    who = "a <a@b> 1 +0000"
    commit = f"tree {name}\nparent {checkout.base_commit}\nauthor {who}\ncommitter {who}\n\nx\n"
    agent(
        checkout,
        f"echo x > x; git update-ref HEAD $(printf '{commit}' | git hash-object -w -t commit --stdin --literally)",
    )
    got = world.collect(checkout, mirror)
    assert content_at(mirror, got.head_commit, "x") == "x\n"
    assert "attempting to allocate" in caplog.text
