"""Which server a database's URL asks, and where the URL is from: for people, and never a part of a password."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tireless import database_url
from tireless.config import DatabaseConfig

URL = "postgresql://ann:hunter22@db.test:5433/tireless"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (URL, "db.test port 5433"),
        ("postgresql://ann@db.test/tireless", "db.test port 5432"),
        ("postgresql://a.test:1,b.test:2/tireless", "a.test port 1, b.test port 2"),
        ("host=a.test,b.test port=7 password=hunter22", "a.test port 7, b.test port 7"),
        ("postgresql:///tireless?host=/run/pg", "/run/pg port 5432"),
        ("postgresql:///tireless", "the local socket port 5432"),
        # A password with a slash in it, as libpq reads it: host ann, port 22, database `x@db.test/tireless`.
        ("postgresql://ann:22/x@db.test/tireless", None),
        ("postgresql://ann:hun@ter:22@db.test/tireless", None),
        ("postgresql://ann:hun@ter@db.test/tireless", None),
        ("postgresql://ann:hun@ter/22@db.test/tireless", None),
        ("nonsense", None),
    ],
)
def test_the_server_is_named_and_no_part_of_a_password(
    url: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGPORT", "PGHOSTADDR", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    assert database_url.server(url) == said


def test_where_the_url_is_from(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"{URL}\n")
    from_file = DatabaseConfig(URL, url_file=file)
    for database, environ, said in (
        (DatabaseConfig(URL), {}, "database.url"),
        (DatabaseConfig(URL), {"TIRELESS_DATABASE_URL": "another"}, "database.url"),
        (DatabaseConfig(URL), {"TIRELESS_DATABASE_URL": URL}, "$TIRELESS_DATABASE_URL"),
        (replace(DatabaseConfig(URL), url_env="OTHER"), {"OTHER": URL}, "$OTHER"),
        (from_file, {"TIRELESS_DATABASE_URL": URL}, f"database.url_file {file}"),
        (replace(from_file, url="another"), {}, "database.url"),  # given in the configuration, which goes first
    ):
        assert database_url.doubt(database, environ) == f"is {said} right, and is it up?"
    assert "embedded" in database_url.doubt(DatabaseConfig(), {})
