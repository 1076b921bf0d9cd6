"""A few hundred random schedules of the queue (TIRELESS_TEST_SCHEDULES; the long mode is in tests/store/model.py)."""

from __future__ import annotations

import random

import pytest

from tests.store import model
from tireless.store.queries import Connection


@pytest.mark.timeout(900)
def test_random_schedules_keep_every_rule(conn: Connection) -> None:
    seed = random.randrange(2**32)
    print(f"python -m tests.store.model --schedules {model.schedules_of_the_suite()} --seed {seed}")
    model.drive(conn, model.schedules_of_the_suite(), seed)
