"""A secret in what is to be pushed is found wherever it stands, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from tests.workspace.world import World, agent

SECRET = "a-canary-of-sixteen-and-more"
OTHER = "line one\nthe-longest-line-of-a-key-file-0123456789\nend"


def leaks(world: World, *commands: str, values: tuple[str, ...] = (SECRET,)) -> list[str]:
    """After an agent that ran these commands in its checkout."""
    mirror, checkout = world.start()
    agent(checkout, "\n".join(commands))
    return world.spaces.leaks(mirror, world.collect(checkout, mirror), values)


@pytest.mark.parametrize(
    ("commands", "places"),
    [
        ((f"echo 'key = {SECRET}' > left.txt",), ["left.txt"]),
        ((f"mkdir -p 'a b' && printf 'x\\0{SECRET}' > 'a b/binary'",), ["a b/binary"]),
        ((f"echo {SECRET} > gone.txt; save one; rm gone.txt; save two; echo x > x",), ["gone.txt"]),
        ((f"echo x > x; save 'with {SECRET}'",), ["a commit message"]),
        ((f"echo x > {SECRET}.txt",), ["a file's name"]),
        (("echo a-canary-of-sixteen > near.txt",), []),
    ],
)
def test_where_it_may_stand(world: World, commands: tuple[str, ...], places: list[str]) -> None:
    assert leaks(world, *commands) == places


def test_a_key_of_several_lines_is_known_by_its_longest(world: World) -> None:
    assert leaks(world, "echo the-longest-line-of-a-key-file-0123456789 > k", values=(OTHER,)) == ["k"]


def test_short_values_and_none_at_all(world: World) -> None:
    assert leaks(world, "echo not-needed > k", values=("not-needed", "")) == []


def test_what_the_repository_had_before_is_not_the_agents(world: World) -> None:
    world.forge.git("acme/site").commit("main", {"old.txt": f"{SECRET}\n"}, "long ago")
    assert leaks(world, "echo new > new.txt; mv old.txt moved.txt") == []
