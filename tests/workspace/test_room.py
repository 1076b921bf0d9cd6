"""Whose workspace took the room on the disk (tireless/workspace/room.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tireless.workspace import Room

MB = 1024 * 1024


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name, size in (("greedy", 8), ("modest", 2)):
        (tmp_path / name / "home").mkdir(parents=True)
        (tmp_path / name / "home" / "data").write_bytes(b"x" * size * MB)
    return tmp_path


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free does not change while others use the same disk."""
    monkeypatch.setattr(Room, "free_bytes", 10 * MB)


def lacking(work: Path, megabytes: int) -> Room:
    """A disk that has so much less than it has to keep free."""
    return Room(work, (10 + megabytes) * MB)


def test_with_room_nobody_is_to_blame(work: Path) -> None:
    room = Room(work, 1)
    assert not room.short
    assert room.taken_by("greedy") is None


def test_the_largest_is_to_blame_if_without_it_there_would_be_room(work: Path) -> None:
    room = lacking(work, 4)
    assert room.short
    taken = room.taken_by("greedy")
    assert taken is not None
    assert taken >= 8 * MB
    assert room.taken_by("modest") is None


def test_a_workspace_that_could_not_make_room_is_not_to_blame(work: Path) -> None:
    assert lacking(work, 100_000).taken_by("greedy") is None


def test_a_smaller_one_is_not_to_blame_though_it_would_make_room(work: Path) -> None:
    """One at a time: the largest goes, and then there is room."""
    assert lacking(work, 1).taken_by("modest") is None


def test_a_job_without_a_workspace_is_not_to_blame(work: Path) -> None:
    assert lacking(work, 4).taken_by("absent") is None


def test_while_sizes_are_taken_the_loop_is_seen_to_turn(work: Path) -> None:
    for i in range(3000):
        (work / "modest" / str(i)).touch()
    beats: list[None] = []
    Room(work, lacking(work, 4).least_bytes, lambda: beats.append(None)).taken_by("greedy")
    assert beats


def test_it_says_what_is_free_and_what_has_to_be(work: Path) -> None:
    room = Room(work, 512 * MB)
    assert room.to_go_on == "10 MB are free, and 512 have to be (runner.min_free_mb)"
    assert room.to_begin == "10 MB are free, and work begins with 1024 (twice runner.min_free_mb)"
    assert "work begins with 1024 MB" in str(room.too_little)


def test_work_begins_with_twice_of_what_it_goes_on_with(work: Path) -> None:
    """So that whoever makes the disk short has taken a real share."""
    assert [(Room(work, n * MB).tight, Room(work, n * MB).short) for n in (5, 6, 10, 11)] == [
        (False, False),
        (True, False),
        (True, False),
        (True, True),
    ]


def test_without_inodes_no_work_begins(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Room, "free_inodes", 999)
    assert Room(work, 1).tight
    assert Room(work, 1).to_begin == "999 inodes are free, and work begins with 1000"
    monkeypatch.setattr(Room, "free_inodes", None)
    assert not Room(work, 1).tight, "where they are not counted, there are enough"


def test_several_that_only_together_could_make_room_go_one_by_one(work: Path) -> None:
    room = lacking(work, 9)
    assert room.taken_by("greedy") is None
    assert room.taken_by("greedy", alone=False) is not None
    assert room.taken_by("modest", alone=False) is None


def test_a_file_with_several_names_is_counted_once(work: Path) -> None:
    for i in range(9):
        (work / "modest" / str(i)).hardlink_to(work / "modest" / "home" / "data")
    assert lacking(work, 1).taken_by("modest") is None
    assert lacking(work, 1).taken_by("greedy") is not None
