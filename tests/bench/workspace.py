"""What a job waits for before its agent can start: a plain clone against a mirror that is up to date and a checkout.

Both read the same repository over smart HTTP with a token, from a forge on loopback, one after the other in turns, so
that what else the machine does weighs on both alike. The figure is the ratio of their medians; a network between
here and the forge only makes it larger. The first job of a repository pays for the mirror: `first_s`.

    python -m tests.bench workspace [--json] [--mb N] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.forge import FakeForge, start
from tireless.config import GitConfig, Secret
from tireless.workspace import Remote, Workspaces

NAME = "acme/big"
_FILE_BYTES = 64 * 1024


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench workspace")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mb", type=int, default=40, help="size of the repository's history, incompressible")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-workspace-") as directory, start("gitea") as forge:
        figures = measure(forge, Path(directory), options.mb, options.rounds)
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"repository              {figures['mb']} MB, {figures['rounds']} rounds")
        print(f"plain clone             {figures['plain_s']:.3f} s")
        print(f"mirror and checkout     {figures['mirrored_s']:.3f} s   (first job {figures['first_s']:.3f} s)")
        print(f"ratio                   {figures['ratio']:.2f} times as fast")
        print(f"disk a checkout         {figures['checkout_mb']:.1f} MB against {figures['clone_mb']:.1f} MB")
    return 0


def measure(forge: FakeForge, directory: Path, mb: int, rounds: int) -> dict[str, float]:
    _fill(forge, mb)
    remote = Remote(f"{forge.url}/{NAME}.git", "x-access-token", Secret(forge.token))
    spaces = Workspaces(directory / "state", GitConfig(), 600, lambda: None, lambda: False)

    def mirrored(job: str) -> None:
        mirror = spaces.update_mirror(forge.ref(NAME), remote)
        spaces.prepare(mirror, job, "tireless/issue-1", "main")

    first = _timed(lambda: mirrored("first"))
    checkout_mb = spaces.disk_usage().work / 1e6
    plain_times, mirrored_times = [], []
    clone = directory / "clone"
    for i in range(rounds):
        shutil.rmtree(clone, ignore_errors=True)
        plain_times.append(_timed(lambda: _plain_clone(remote, clone)))
        mirrored_times.append(_timed(lambda i=i: mirrored(f"job-{i}")))  # type: ignore[misc]
        spaces.remove(f"job-{i}")
    plain, with_mirror = statistics.median(plain_times), statistics.median(mirrored_times)
    return {
        "mb": mb,
        "rounds": rounds,
        "plain_s": plain,
        "mirrored_s": with_mirror,
        "first_s": first,
        "ratio": plain / with_mirror,
        "clone_mb": sum(path.lstat().st_blocks * 512 for path in clone.rglob("*")) / 1e6,
        "checkout_mb": checkout_mb,
    }


def _fill(forge: FakeForge, mb: int) -> None:
    """A history of `mb` megabytes in commits of a megabyte, most of it no longer in the last tree."""
    forge.add_repo(NAME)
    per_commit = (1 << 20) // _FILE_BYTES
    for i in range(mb):
        files = {f"data/{i % 4}/{n}": os.urandom(_FILE_BYTES) for n in range(per_commit)}
        forge.git(NAME).commit("main", files, f"commit {i}")
    forge.git(NAME).git(
        "repack", "-adq", "--window=0"
    )  # as a forge keeps it: what it sends, it has packed before
    forge.git(NAME).git(
        "repack", "-adq", "--window=0"
    )  # as a forge keeps it: what it sends, it has packed before


def _plain_clone(remote: Remote, target: Path) -> None:
    access = remote.access()
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", **access.env}
    environment["GIT_CONFIG_COUNT"] = str(len(access.config))
    for i, (key, value) in enumerate(access.config):
        environment |= {f"GIT_CONFIG_KEY_{i}": key, f"GIT_CONFIG_VALUE_{i}": value}
    command = ["git", "clone", "--quiet", "--", remote.url, str(target)]
    subprocess.run(command, env=environment, check=True)


def _timed(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
