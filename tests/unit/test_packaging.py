"""An installed wheel, away from the checkout: it has all its modules, migrates, and starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.postgres import Server
from tests.support.rig import CHECKOUT
from tests.support.wait import wait_until

_SOURCES = ("tireless", "schema", "pyproject.toml", "README.md", "LICENSE")


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(path.parent.relative_to(CHECKOUT).parts)
        for path in (CHECKOUT / "tireless").rglob("__init__.py")
    }
    assert set(listed) == found | {"tireless.schema"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the files that git knows and installed into a folder of its own."""
    root = tmp_path_factory.mktemp("wheel")
    source = root / "source"
    source.mkdir()
    names = subprocess.run(
        [
            "git",
            "ls-files",
            "-co",
            "--exclude-standard",
            "-z",
            "--",
            "tireless",
            "schema",
            "pyproject.toml",
            "README.md",
            "LICENSE",
        ],
        cwd=CHECKOUT,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, names.decode().split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((CHECKOUT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(root), str(source)]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    [wheel] = root.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(root / "lib"), str(wheel)], check=True)
    return root / "lib"


def _environ(installed: Path, url: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TIRELESS_")}
    return {**kept, "PYTHONPATH": str(installed), "TIRELESS_DATABASE_URL": url}


def _run(installed: Path, url: str, cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        env=_environ(installed, url),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_an_installed_wheel_migrates_and_starts(installed: Path, pg_server: Server, tmp_path: Path) -> None:
    with pg_server.database(empty=True) as url:
        where = _run(installed, url, tmp_path, "-c", "import tireless; print(tireless.__file__)")
        assert Path(where.stdout.strip()).is_relative_to(installed)
        done = _run(installed, url, tmp_path, str(installed / "bin/tireless-ctl"), "migrate")
        assert done.returncode == 0, done.stderr
        assert "0001" in done.stdout
        config = tmp_path / "tireless.toml"
        config.write_text(f'state_dir = "{tmp_path / "state"}"\n')
        with open(tmp_path / "log", "wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, str(installed / "bin/tireless-supervisor"), "--config", str(config)],
                env=_environ(installed, url),
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            wait_until(lambda: re.search(r"ready: poller 1/1", (tmp_path / "log").read_text()), 30, "ready")
        finally:
            supervisor.send_signal(signal.SIGTERM)
            assert supervisor.wait(30) == 0
