"""A PgBouncer in transaction mode before the test's server."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.support.wait import wait_until

PROGRAM = shutil.which("pgbouncer")


@contextlib.contextmanager
def transaction_mode(url: str, *, pool_size: int = 2, ignore_options: bool = False) -> Iterator[str]:
    """The URL through the pooler. With `ignore_options` it passes over the startup parameter `options`, which it
    otherwise refuses."""
    assert PROGRAM is not None
    parts = conninfo_to_dict(url)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    root = Path(tempfile.mkdtemp(prefix="tlbouncer"))
    root.chmod(0o755)
    user = parts.get("user", "postgres")
    (root / "users").write_text(f'"{user}" ""\n')
    config = root / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={parts['host']} port={parts.get('port', 5432)} user={user}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"auth_file = {root / 'users'}\npool_mode = transaction\ndefault_pool_size = {pool_size}\n"
        + (
            "ignore_startup_parameters = extra_float_digits,options\n"
            if ignore_options
            else "ignore_startup_parameters = extra_float_digits\n"
        )
    )
    command = [PROGRAM, str(config)]
    if os.getuid() == 0:  # which it refuses to be; whoever runs the server may reach its socket
        command[1:1] = ["-u", pwd.getpwuid(Path(str(parts["host"])).stat().st_uid).pw_name]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    through = f"postgresql://{user}@127.0.0.1:{port}/{parts['dbname']}"
    try:

        def answers() -> bool:
            assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(through, connect_timeout=2):
                return True
            return False

        wait_until(answers, what="pgbouncer answers")
        yield through
    finally:
        process.terminate()
        process.wait(10)
        if process.stderr is not None:
            process.stderr.close()
        shutil.rmtree(root, ignore_errors=True)
