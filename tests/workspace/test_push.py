"""Pushing: once, never by force, and what the forge's answers come to."""

from __future__ import annotations

import pytest

from tests.workspace.world import BRANCH, JOB, World, agent
from tireless.workspace import BranchMoved, NotCollected, RemoteRefused, RemoteUnreachable


def test_pushing_twice_is_success(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    got = world.collect(checkout, mirror)
    assert not world.push(mirror, got).already
    assert world.push(mirror, got).already
    assert world.upstream.branches() == {"main": checkout.base_commit, BRANCH: got.head_commit}


def test_a_push_whose_answer_was_lost_is_success_the_next_time(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    got = world.collect(checkout, mirror)
    world.forge.fail(match="POST .*git-receive-pack", status=502, act=True, times=1)
    with pytest.raises(RemoteUnreachable):
        world.push(mirror, got)
    assert world.upstream.sha(BRANCH) == got.head_commit
    assert world.push(mirror, got).already


def test_what_somebody_put_on_top_of_our_push_does_not_make_it_fail(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    got = world.deliver(checkout, mirror)
    theirs = world.upstream.commit(BRANCH, {"theirs": "1\n"}, "on top")
    assert world.push(mirror, got).already
    assert world.upstream.sha(BRANCH) == theirs


def test_a_branch_that_moved_is_not_overwritten(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    got = world.collect(checkout, mirror)
    world.upstream.git("update-ref", f"refs/heads/{BRANCH}", checkout.base_commit)
    theirs = world.upstream.commit(BRANCH, {"theirs": "1\n"}, "theirs")
    with pytest.raises(BranchMoved, match=BRANCH):
        world.push(mirror, got)
    assert world.upstream.sha(BRANCH) == theirs


def test_only_what_was_collected_for_the_job_is_pushed(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    got = world.collect(checkout, mirror)
    for job, commit in ((JOB, checkout.base_commit), ("other", got.head_commit), (JOB, "HEAD"), (JOB, "")):
        with pytest.raises(NotCollected):
            world.spaces.push(mirror, world.remote, job, BRANCH, commit, "main")
    assert list(world.upstream.branches()) == ["main"]


def test_a_rule_of_the_forge_is_a_refusal_with_its_words(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    got = world.collect(checkout, mirror)
    hook = world.upstream.path / "hooks/pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'commits must be signed' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(RemoteRefused, match=r"pre-receive hook declined(.|\n)*commits must be signed"):
        world.push(mirror, got)


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("where", ["GET .*service=git-receive-pack", "POST .*git-receive-pack"])
def test_a_missing_right_is_a_refusal(world: World, status: int, where: str) -> None:
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    got = world.collect(checkout, mirror)
    world.forge.fail(match=where, status=status, times=None)
    with pytest.raises(RemoteRefused):
        world.push(mirror, got)


def test_a_forge_that_is_down_is_unreachable(world: World) -> None:
    mirror, checkout = world.start()
    agent(checkout, "echo x > x")
    got = world.collect(checkout, mirror)
    world.forge.down()
    with pytest.raises(RemoteUnreachable):
        world.push(mirror, got)
    world.forge.up()
    assert not world.push(mirror, got).already
