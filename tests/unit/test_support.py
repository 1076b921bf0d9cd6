"""What the suite leaves behind when it is killed: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg

from tests.support.rig import CHECKOUT
from tests.support.wait import wait_until

HOLDER = """
import sys
from tests.support import postgres
with postgres.embedded() as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def test_a_test_server_goes_with_a_killed_pytest() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONWARNINGS": "ignore"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        url = holder.stdout.readline().strip()
        with psycopg.connect(url) as conn:
            data = Path(conn.info.host)
            pid = int((data / "postmaster.pid").read_text().splitlines()[0])
    finally:
        holder.kill()
        holder.communicate()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30, "the server is gone")
    wait_until(lambda: not data.parent.exists(), 30, "its directory is gone")
