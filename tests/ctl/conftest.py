"""tireless-ctl as an operator uses it: a configuration file, arguments, and what comes out."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import forge as forges
from tests.support.forge import FakeForge
from tests.support.store import open_lanes
from tireless.ctl import main
from tireless.store.queries import Connection

TOKEN_VARIABLE = "FORGE_TOKEN"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def ok(self) -> Answer:
        assert self.code == 0, self.err
        return self


@dataclass
class Ctl:
    """The command with a configuration of its own; `config` is what the file says."""

    root: Path
    url: str | None
    forge: FakeForge | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def state_dir(self) -> Path:
        return self.root / "state"

    @property
    def path(self) -> Path:
        return self.root / "tireless.toml"

    def write(self, *more: str) -> Path:
        """Write the file; `more` are tables to add."""
        lines = [f'host = "here"\nstate_dir = "{self.state_dir}"']
        if self.url is not None:
            lines.append(f"[database]\nurl = {json.dumps(self.url)}\nconnect_timeout_seconds = 2")
        if self.forge is not None:
            kind, host, api = self.forge.kind, self.forge.host, self.forge.api_url
            entry = f'kind = "{kind}"\nhost = "{host}"\napi_url = "{api}"\ntoken_env = "{TOKEN_VARIABLE}"'
            lines.append(f"[[forge]]\n{entry}")
        self.path.write_text("\n".join([*lines, *self.lines, *more]) + "\n")
        return self.path

    def __call__(self, *argv: str) -> Answer:
        if not self.path.exists():
            self.write()
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["--config", str(self.path), *argv])
        return Answer(code, out.getvalue(), err.getvalue())


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIRELESS_CONFIG", "TIRELESS_DATABASE_URL", TOKEN_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ctl(tmp_path: Path, database_url: str, conn: Connection) -> Ctl:
    """tireless-ctl on a migrated database with open lanes, which `conn` sees too."""
    open_lanes(conn)
    return Ctl(tmp_path, database_url)


@pytest.fixture(params=sorted(forges.KINDS))
def forge(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeForge]:
    """Each fake forge in turn, its token in the environment."""
    with forges.start(request.param) as running:
        monkeypatch.setenv(TOKEN_VARIABLE, running.token)
        yield running


@pytest.fixture
def gitea(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeForge]:
    with forges.start("gitea") as running:
        monkeypatch.setenv(TOKEN_VARIABLE, running.token)
        yield running
