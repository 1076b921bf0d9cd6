"""A supervisor under test: started for real, steered by files and signals, looked at from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.wait import wait_until
from tireless import proctree

ROOT = Path(__file__).resolve().parents[3]
STUB = "tests.support.lifecycle.stub_supervisor"

QUICK = {
    "drain_seconds": 30.0,
    "stop_grace_seconds": 1.0,
    "beat_seconds": 20.0,
    "ready_seconds": 20.0,
    "restart_delay_seconds": 0.05,
    "crash_loop_limit": 5,
    "healthy_seconds": 60.0,
}


class Supervised:
    """One supervisor with stub children. `settings` are keys of [supervisor]; `runners` processes a lane."""

    def __init__(self, directory: Path, runners: Mapping[str, int] | None = None, **settings: float) -> None:
        self.directory = directory
        self.state_dir = directory / "state"
        self.log_path = directory / "log"
        self.settings = {**QUICK, **settings}
        self.runners = dict(runners or {"claude_code": 1, "opencode": 1})
        self.caps: dict[str, int] = {}
        self.log_level = "info"
        self.process: subprocess.Popen[bytes] | None = None
        self.seen: set[int] = set()  # every pid that any event has named
        self.write_config()

    # -- before it starts ---------------------------------------------------------------------------------

    @property
    def config(self) -> Path:
        return self.directory / "tireless.toml"

    def write_config(self) -> None:
        lines = [
            'host = "here"',
            f'state_dir = "{self.state_dir}"',
            f'log_level = "{self.log_level}"',
            "[supervisor]",
            *(f"{key} = {value}" for key, value in self.settings.items()),
        ]
        for lane, count in self.runners.items():
            lines += [f"[lane.{lane}]", f"runners = {count}", f"cap = {self.caps.get(lane, 2)}"]
        self.config.write_text("\n".join(lines) + "\n")

    def behave(self, **who: str) -> None:
        (self.directory / "behaviour.json").write_text(json.dumps(who))

    def go(self) -> None:
        (self.directory / "go").touch()

    def environment(self) -> dict[str, str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("TIRELESS_", "NOTIFY_", "WATCHDOG_"))}
        return {**base, "STUB_DIR": str(self.directory), "PYTHONPATH": str(ROOT)}

    def start(
        self,
        arguments: Sequence[str] = (),
        pass_fds: tuple[int, ...] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Supervised:
        command = [sys.executable, "-m", STUB, "--config", str(self.config), *arguments]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**self.environment(), **(environ or {})},
                stderr=log,
                stdout=log,
                start_new_session=True,
                pass_fds=pass_fds,
            )
        return self

    def start_ready(self, **environ: str) -> Supervised:
        self.start(environ=environ)
        self.await_log("ready: ")
        return self

    # -- while it runs ------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def send(self, sig: signal.Signals) -> None:
        os.kill(self.pid, sig)

    def exit_code(self, timeout: float = 20.0) -> int:
        assert self.process is not None
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the supervisor did not end; its log:\n{self.log()}") from None

    def events(self, event: str | None = None, **match: Any) -> list[dict[str, Any]]:
        try:
            text = (self.directory / "events.jsonl").read_text()
        except FileNotFoundError:
            return []
        # The last line may be half written.
        every = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        self.seen.update(e["pid"] for e in every)
        return [
            e
            for e in every
            if event in (None, e["event"]) and all(e.get(key) == value for key, value in match.items())
        ]

    def await_event(self, event: str, timeout: float = 15.0, count: int = 1, **match: Any) -> dict[str, Any]:
        """The `count`th event of that kind."""

        def look() -> dict[str, Any] | None:
            found = self.events(event, **match)
            return found[count - 1] if len(found) >= count else None

        try:
            return wait_until(look, timeout, f"{count} of event {event} {match}")
        except AssertionError as e:
            raise AssertionError(f"{e}; events: {self.events()}; log:\n{self.log()}") from None

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def log_lines(self, text: str) -> list[str]:
        return [line for line in self.log().splitlines() if text in line]

    def await_log(self, text: str, timeout: float = 15.0, count: int = 1) -> str:
        try:
            return wait_until(
                lambda: (found := self.log_lines(text)) and len(found) >= count and found[count - 1],  # type: ignore[return-value]
                timeout,
                f"{count} log lines with {text!r}",
            )
        except AssertionError as e:
            raise AssertionError(f"{e}; log:\n{self.log()}") from None

    def pid_of(self, who: str, index: int = 0) -> int:
        """The newest child of that name."""
        self.await_event("start", who=who, index=index)
        return int(self.events("start", who=who, index=index)[-1]["pid"])

    # -- afterwards ---------------------------------------------------------------------------------------

    def alive(self) -> list[int]:
        """Processes of this supervisor, by what they have recorded or by where they run."""
        self.events()
        place = os.fsencode(self.directory)
        found = []
        for pid in proctree.pids():
            if pid == os.getpid() or proctree.start_ticks(pid) is None:
                continue
            with contextlib.suppress(OSError):
                if b"STUB_DIR=" + place in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def close(self) -> None:
        proctree.kill_all(self.alive, 5.0)
        if self.process is not None:
            self.process.wait(5)
