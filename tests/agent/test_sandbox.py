"""What an agent behind bubblewrap can see and touch: each door is tried from inside (FAULTS.md 30)."""

from __future__ import annotations

import json
import os
import pwd
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.runs import NO_SANDBOX, SCRIPTED, Job, bubblewrap, scripted_lane
from tireless.agents.sandbox import Account, Sandbox, installation, probe
from tireless.config import ConfigError, Network, SandboxConfig, SandboxMode
from tireless.entities import Outcome

needs_bubblewrap = pytest.mark.skipif(
    bubblewrap() is None, reason="bubblewrap does not work on this machine, so there is no sandbox to test"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run an agent as another account")


def walled(job: Job, hidden: Sequence[Path] = (), **settings: Any) -> Job:
    sandbox = bubblewrap(SandboxConfig(**settings), tuple(hidden))
    assert sandbox is not None
    job.sandbox = sandbox
    return job


def inside(job: Job, command: str) -> str:
    """What a shell command prints in the agent's place, errors included."""
    out = job.places.workspace / "answer"
    job.session = f"{len(command):08d}-0000-4000-8000-{job.runs:012d}"
    conclusion = job.run(scripted_lane({"do": "shell", "command": f"({command}) > answer 2>&1; true"}))
    assert conclusion.outcome is Outcome.COMPLETED, conclusion
    return out.read_text()


@needs_bubblewrap
class TestDoors:
    def test_the_state_directory_does_not_exist(self, job: Job) -> None:
        """Of the state directory the job's own places are there, and nothing beside them."""
        for other in ("secret.txt", "config.toml"):
            (job.root / other).write_text("canary")
        (job.root / "other-job").mkdir()
        seen = inside(walled(job), f"ls -a {job.root}")
        assert set(seen.split()) - {".", ".."} == {"workspace", "home", "report", "tmp"}

    def test_own_run_files_do_not_exist(self, job: Job) -> None:
        assert "No such file" in inside(walled(job), f"cat {job.root}/run-1/guard.json")

    def test_home_of_the_account_and_etc_passwords(self, job: Job) -> None:
        seen = inside(walled(job), f"ls {Path.home()}; cat /etc/shadow; ls /root /home /srv /run /mnt; ls /etc")
        assert "cat: /etc/shadow: No such file" in seen
        assert "agent" not in seen.split("/etc/shadow")[0]
        assert "shadow\n" not in seen

    @pytest.mark.parametrize(
        "path",
        ["/usr/canary", "/etc/canary", "/opt/canary", "/canary", f"{SCRIPTED.parent}/canary", "/etc/passwd"],
    )
    def test_the_system_cannot_be_written(self, job: Job, path: str) -> None:
        inside(walled(job), f"echo x >> {path}")
        assert not Path(path).exists() or "\nx\n" not in Path(path).read_text()

    def test_its_own_places_can_be_written(self, job: Job) -> None:
        names = "$HOME/a $TMPDIR/a $TIRELESS_REPORT/a ./a /tmp/a"
        assert inside(walled(job), f"for f in {names}; do echo x > $f || echo no; done") == ""
        assert all((place / "a").exists() for place in job.places.writable)
        assert not Path("/tmp/a").exists()

    def test_other_processes_cannot_be_seen_or_killed(self, job: Job) -> None:
        seen = inside(walled(job), f"ls /proc | grep -c '^[0-9]'; kill -9 {os.getpid()} || echo safe")
        assert int(seen.split()[0]) < 12
        assert seen.rstrip().endswith("safe")

    def test_all_that_it_can_kill_is_itself(self, job: Job) -> None:
        command = scripted_lane({"do": "shell", "command": "kill -9 -1"})
        assert walled(job).run(command).outcome is Outcome.CRASHED

    def test_no_capabilities_and_an_ordinary_user(self, job: Job) -> None:
        seen = inside(
            walled(job), "id -u; whoami; grep -h CapEff /proc/self/status; grep -h CapBnd /proc/self/status"
        )
        assert seen.split() == ["1000", "agent", "CapEff:", "0" * 16, "CapBnd:", "0" * 16]

    def test_mounts_cannot_be_changed(self, job: Job) -> None:
        attempts = "mount -o remount,rw /usr || umount /proc || mount -t tmpfs none /usr || echo none worked"
        assert inside(walled(job), attempts).rstrip().endswith("none worked")

    def test_a_link_in_the_workspace_leads_nowhere(self, job: Job) -> None:
        (job.root / "secret.txt").write_text("canary")
        seen = inside(walled(job), f"ln -s {job.root}/secret.txt link; cat link; ln -s /etc/shadow l2; cat l2")
        assert "canary" not in seen
        assert seen.count("No such file") == 2

    def test_a_database_socket_cannot_be_reached(self, job: Job, tmp_path: Path) -> None:
        place = tmp_path / "pg"
        place.mkdir()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(place / "s"))
            server.listen()
            code = f"import socket; socket.socket(socket.AF_UNIX).connect('{place}/s')"
            assert "FileNotFoundError" in inside(walled(job), f'{sys.executable} -c "{code}"')

    def test_the_mirror_is_read_only(self, job: Job) -> None:
        job.mirror = job.root / "mirror"
        job.mirror.mkdir()
        (job.mirror / "packed").write_text("objects")
        seen = inside(
            walled(job), f"cat {job.mirror}/packed; echo x > {job.mirror}/packed; rm {job.mirror}/packed"
        )
        assert seen.startswith("objects")
        assert (job.mirror / "packed").read_text() == "objects"

    @pytest.mark.parametrize(("network", "reached"), [(Network.ON, "yes"), (Network.OFF, "no")])
    def test_network(self, job: Job, network: Network, reached: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            code = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
            command = f'{sys.executable} -c "{code}" 2>/dev/null && echo yes || echo no'
            assert inside(walled(job, network=network), command).strip() == reached

    def test_further_paths_of_the_configuration(self, job: Job, tmp_path: Path) -> None:
        shown, given = tmp_path / "shown", tmp_path / "given"
        for place in (shown, given):
            place.mkdir()
            (place / "f").write_text("there")
        job.root = tmp_path / "job"
        walled(job, read_only=(shown,), writable=(given,))
        assert inside(job, f"cat {shown}/f {given}/f; echo x > {shown}/f; echo new > {given}/f").startswith(
            "therethere"
        )
        assert ((shown / "f").read_text(), (given / "f").read_text()) == ("there", "new\n")

    def test_what_is_hidden_stays_so_inside_a_shown_directory(self, job: Job, tmp_path: Path) -> None:
        shown = tmp_path / "shown"
        (shown / "state").mkdir(parents=True)
        (shown / "state" / "f").write_text("canary")
        (shown / "tireless.toml").write_text("canary")
        job.root = tmp_path / "job"
        walled(job, read_only=(shown,), hidden=(shown / "state", shown / "tireless.toml"))
        seen = inside(job, f"cat {shown}/tireless.toml {shown}/state/f; ls {shown}")
        assert "canary" not in seen
        assert "state" in seen

    def test_process_limit_and_file_limit(self, job: Job) -> None:
        walled(job, file_mb=1)
        limits = "grep -E 'processes|core' /proc/self/limits"
        seen = inside(
            job, f"dd if=/dev/zero of=big bs=1M count=3 2>/dev/null; stat -c %s big; {limits}"
        ).split()
        assert seen[0] == str(1024 * 1024)
        assert seen[seen.index("core") + 1 : seen.index("core") + 4] == ["file", "size", "0"]
        assert seen[seen.index("processes") + 1] == "2048"

    def test_memory_limit(self, job: Job) -> None:
        walled(job, memory_mb=300)
        assert "MemoryError" in inside(job, f'{sys.executable} -c "bytearray(400_000_000)"')
        assert inside(job, f'{sys.executable} -c "bytearray(100_000_000)"') == ""

    def test_no_key_in_any_argument(self, job: Job) -> None:
        lane = scripted_lane({"do": "shell", "command": "cat /proc/[0-9]*/cmdline > answer"})
        walled(job).run(replace(lane, env={**lane.env, "ANTHROPIC_API_KEY": "canary-key"}))
        assert b"canary-key" not in (job.places.workspace / "answer").read_bytes()
        assert b"canary-key" not in (job.run_dir / "guard.json").read_bytes()

    def test_the_cli_is_not_told_that_it_is_root(self, job: Job) -> None:
        assert "IS_SANDBOX" not in inside(walled(job), "env")

    def test_files_belong_to_us_outside(self, job: Job) -> None:
        inside(walled(job), "mkdir d; echo x > d/f; id")
        info = (job.places.workspace / "d" / "f").stat()
        assert (info.st_uid, info.st_mode & 0o777) == (os.geteuid(), 0o644)


class TestProbe:
    def test_none_is_none(self) -> None:
        assert probe(SandboxConfig(mode=SandboxMode.NONE)).bwrap is None
        assert NO_SANDBOX.wrap(["a"], [], Job(Path("/x")).places, Path("/x")) == ("a",)

    def test_demanded_and_not_there(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConfigError, match="bwrap is not installed"):
            probe(SandboxConfig(mode=SandboxMode.BWRAP))

    def test_there_and_does_not_work(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        broken = tmp_path / "bwrap"
        broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
        broken.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConfigError, match="No permissions to create new namespace"):
            probe(SandboxConfig(mode=SandboxMode.BWRAP))
        assert probe(SandboxConfig()).bwrap is None
        assert "no sandbox" in caplog.text

    def test_a_path_that_is_not_there(self) -> None:
        with pytest.raises(ConfigError, match=r"sandbox\.read_only names /no/such"):
            probe(SandboxConfig(read_only=(Path("/no/such"),)))
        with pytest.raises(ConfigError, match=r"sandbox\.writable names /no/such"):
            probe(SandboxConfig(writable=(Path("/no/such"),)))

    @needs_root
    def test_accounts(self) -> None:
        with pytest.raises(ConfigError, match="no such account"):
            probe(SandboxConfig(mode=SandboxMode.NONE, user="nobody-here"))
        with pytest.raises(ConfigError, match="which is root"):
            probe(SandboxConfig(mode=SandboxMode.NONE, user="root"))
        account = probe(SandboxConfig(mode=SandboxMode.NONE, user="nobody")).account
        assert account is not None
        assert account.uid == pwd.getpwnam("nobody").pw_uid


@needs_root
class TestAccount:
    @pytest.fixture
    def as_nobody(self, job: Job, tmp_path: Path) -> Job:
        for parent in [tmp_path, *tmp_path.parents]:
            if parent.stat().st_uid == 0 and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o001)
        job.sandbox = Sandbox(SandboxConfig(mode=SandboxMode.NONE), account=Account.named("nobody"))
        return job

    def script(self, job: Job, command: str) -> Any:
        """By the system's Python, since the test's own may lie where another account cannot look."""
        lane = scripted_lane({"do": "shell", "command": command})
        readable = job.root / "scripted.py"
        readable.write_bytes(SCRIPTED.read_bytes())
        readable.chmod(0o755)
        return replace(lane, command=("/usr/bin/python3", str(readable)))

    @pytest.mark.skipif(
        not Path("/usr/bin/python3").exists(), reason="needs a Python that every account can run"
    )
    def test_the_agent_is_that_account(self, as_nobody: Job) -> None:
        (as_nobody.root / "secret").write_text("canary")
        (as_nobody.root / "secret").chmod(0o600)
        as_nobody.places.workspace.mkdir()
        (as_nobody.places.workspace / "ours").write_text("checkout")
        command = "id -un > answer; echo more >> ours; cat ../secret >> answer"
        conclusion = as_nobody.run(self.script(as_nobody, command))
        assert conclusion.outcome is Outcome.COMPLETED
        answer = as_nobody.places.workspace / "answer"
        assert answer.read_text() == "nobody\n"
        assert answer.owner() == "nobody"
        as_nobody.sandbox.reclaim(as_nobody.places)
        assert answer.owner() == "root"
        assert (as_nobody.places.workspace / "ours").read_text() == "checkoutmore\n"

    def test_a_second_name_of_a_file_elsewhere_is_not_given_away(self, as_nobody: Job, tmp_path: Path) -> None:
        target = tmp_path / "target"
        target.write_text("ours")
        place = as_nobody.places.workspace
        place.mkdir()
        os.link(target, place / "hard")
        os.symlink(target, place / "soft")
        as_nobody.sandbox.prepare(as_nobody.places)
        assert target.owner() == "root"

    def test_root_is_told_to_the_cli(self, job: Job) -> None:
        job.run(scripted_lane({"do": "environment", "path": "env.json"}))
        assert json.loads((job.places.workspace / "env.json").read_text())["IS_SANDBOX"] == "1"


def test_installation_of_a_virtual_environment(tmp_path: Path) -> None:
    base, venv = tmp_path / "python", tmp_path / "venv"
    for place in (base / "bin", base / "lib", venv / "bin", venv / "lib"):
        place.mkdir(parents=True)
    (base / "bin" / "python3").touch()
    (venv / "pyvenv.cfg").touch()
    (venv / "bin" / "python").symlink_to(base / "bin" / "python3")
    shown = {venv / "bin", venv / "lib", venv / "pyvenv.cfg", base / "bin", base / "lib"}
    assert set(installation(venv / "bin" / "python")) == shown


def test_installation_of_an_npm_package(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "@x" / "cli" / "bin"
    package.mkdir(parents=True)
    (package / "cli.js").touch()
    (tmp_path / "node_modules" / ".bin").mkdir()
    (tmp_path / "node_modules" / ".bin" / "cli").symlink_to("../@x/cli/bin/cli.js")
    assert installation(tmp_path / "node_modules" / ".bin" / "cli") == [tmp_path / "node_modules"]


def test_a_program_in_a_home_directory_does_not_show_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cli").touch()
    assert installation(tmp_path / "cli") == [tmp_path / "cli"]


def test_a_program_of_the_system_adds_nothing() -> None:
    assert installation(Path("/usr/bin/env")) == []
