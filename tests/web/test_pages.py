"""What the pages show, and what a stranger's text can do to them: nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.web.conftest import CONFIG, TOKEN, Rows, Site, Start
from tireless.config import LaneConfig
from tireless.entities import AgentKind
from tireless.store import lanes
from tireless.web.markup import el, is_web_url, link, strange
from tireless.web.style import STYLE

HOSTILE = [
    "<script>alert(1)</script>",
    "</bdi></td></table><img src=x onerror=alert(1)>",
    '"><a href="javascript:alert(1)">x</a>',
    "' onmouseover='alert(1)",
    "&lt;b&gt; &amp; <!-- --> ]]>",
    "</title></style><style>*{display:none}</style>",
    "\u202eevil\u202d \x01\x1b[2J\x7f\x9b",
]


class Parsed(HTMLParser):
    """Elements, their attributes and all text, as a browser would make them out."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes what is not open"

    def handle_data(self, data: str) -> None:
        self.text += data

    def hrefs(self) -> list[str]:
        return [href for tag, attrs in self.elements if tag == "a" and (href := attrs.get("href"))]


def parsed(page: str) -> Parsed:
    found = Parsed(page)
    assert found.open == []
    return found


ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "a", "span", "p", "div"),
    *("table", "thead", "tbody", "tr", "th", "td", "b", "bdi", "code", "time"),
}


def test_overview_shows_a_host_that_drains(site: Site, rows: Rows) -> None:
    rows.add("worker", id="host/1", host="build-<7>", role="runner", lane="claude_code", pid=7, version="0")
    rows.running()
    assert "draining" not in parsed(site.ask("/").body).text
    rows.conn.execute(b"update worker set draining_since = now() - interval '125 seconds'")
    said = "draining: host build-<7> takes nothing new and waits for 1 job, since 2 min ago."
    assert said in parsed(site.ask("/").body).text


def test_overview_shows_what_is_going_on(site: Site, rows: Rows) -> None:
    running = rows.running(title="Fix the door", phase="verify", attempts=2)
    rows.job(title="Waits its turn", lane="opencode", kind="plan")
    done = rows.finished(title="Painted", pull_request_number=12, pull_request_url="https://git.example/pr/12")
    for cost in (0.5, 0.75):
        rows.add(
            "agent_run",
            id=uuid4(),
            job_id=done,
            claim_seq=1,
            agent="claude_code",
            host="h",
            worker="w",
            cost_usd=cost,
        )
    repo = {"forge": "gitea", "host": "git.example", "owner": "acme", "repo": "site", "default_branch": "main"}
    rows.add(
        "tracked_repo",
        **repo,
        clone_url="https://u:pw@git.example/x",
        poll_result="forbidden",
        poll_detail="403",
    )
    rows.add(
        "worker", id="host/1", host="runner-host", role="runner", lane="claude_code", pid=77, version="9.9"
    )
    rows.write(state="refused", last_error="no such label", op="add_label", done_at="now")
    rows.write(state="waiting", last_error="unreachable", attempts=4)
    lanes.pause(rows.conn, AgentKind.OPENCODE, "the weekend")
    lanes.hold(rows.conn, AgentKind.CLAUDE_CODE, "usage limit", seconds=7200)

    answer = site.ask("/")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = parsed(answer.body)
    for text in (
        *("Fix the door", "verify", "2/3", "Waits its turn", "Painted", "$1.25", "#12", "paused: the weekend"),
        *("held: usage limit, until 20", "(in 1 h 59 min)", "forbidden", "403", "runner-host", "77", "9.9"),
        *("no such label", "unreachable", "add_label"),
    ):
        assert text in page.text, text
    assert f"/jobs/{running}" in page.hrefs()
    assert "https://git.example/pr/12" in page.hrefs()
    assert "http://git.example:3000/sub/acme/site/issues/1" in page.hrefs()  # as the forge's api_url tells
    assert "u:pw" not in answer.body
    assert {"http-equiv": "refresh", "content": "10"} in [
        attrs for tag, attrs in page.elements if tag == "meta"
    ]


def test_a_hold_without_an_end_says_what_ends_it(site: Site, rows: Rows) -> None:
    lanes.hold(rows.conn, AgentKind.OPENCODE, "no login")
    assert "held: no login, until an operator resumes it" in parsed(site.ask("/").body).text


def starts_jobs(site: Site) -> list[str]:
    """What the page says of each lane."""
    lanes_table = site.ask("/").body.partition("<h2>Lanes</h2>")[2].partition("</table>")[0]
    return [
        parsed(row.rpartition("<td>")[2].removesuffix("</td>")).text for row in lanes_table.split("</tr>")[1:-1]
    ]


def test_a_lane_that_nobody_works_does_not_start_jobs(site: Site, rows: Rows) -> None:
    nobody = "no runner: no runner is alive on any host; start tireless-supervisor"
    assert starts_jobs(site) == [nobody, nobody]
    worker = {"role": "runner", "lane": "claude_code", "pid": 7, "version": "0", "host": "build"}
    rows.add("worker", id="host/1", **worker)
    elsewhere = "no runner: no runner is alive, though tireless runs on build; see that lane's log"
    assert starts_jobs(site) == ["yes", elsewhere]
    rows.conn.execute(b"update worker set waits_for = 'claude is not on PATH'")
    assert starts_jobs(site)[0] == "no runner: no runner can start its agent: on build claude is not on PATH"
    rows.conn.execute(b"update worker set waits_for = null, seen_at = now() - interval '4 minutes'")
    assert starts_jobs(site) == [nobody, nobody]
    rows.running()  # its lease speaks for it
    assert starts_jobs(site)[0] == "yes"
    rows.conn.execute(b"update worker set draining_since = now()")
    assert starts_jobs(site)[0].startswith("draining: every runner drains (on build): it finishes what it has")


def test_a_lane_that_is_off_here_and_has_no_runner_elsewhere(
    start: Start, database_url: str, rows: Rows
) -> None:
    off = replace(CONFIG, lane={AgentKind.OPENCODE: LaneConfig(enabled=False)})
    site = start(lambda: psycopg.connect(database_url, autocommit=True), off)
    said = "no runner: not enabled in the defaults of this host, and no runner of it is alive on another"
    assert starts_jobs(site)[1] == said


def test_an_ended_hold_is_not_shown(site: Site, rows: Rows) -> None:
    rows.conn.execute("update lane set held_until = now() - interval '1 second', hold_reason = 'usage limit'")
    assert "usage limit" not in site.ask("/").body


def test_an_empty_database_is_a_page_too(site: Site) -> None:
    assert parsed(site.ask("/").body).text.count("none") == 6


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text(site: Site, rows: Rows, text: str) -> None:
    job = rows.running(title=text, owner=text, repo=text, last_error=text, branch=text, cancel_reason=text)
    rows.finished(title=text, pull_request_url=text, pull_request_number=3, last_error=text)
    rows.conn.execute("update lane set paused = true, pause_reason = %s, hold_reason = %s", (text, text))
    rows.add("worker", id=text, host=text, role="runner", lane="claude_code", pid=1, version=text)
    rows.add("job_event", job_id=job, kind=text, actor=text)
    run = {
        "agent": "claude_code",
        "host": text,
        "worker": "w",
        "model": text,
        "detail": text,
        "outcome": "crashed",
    }
    rows.add("agent_run", id=uuid4(), job_id=job, claim_seq=1, **run)
    rows.write(job_id=job, state="refused", last_error=text, owner=text)
    shown = "".join(c for c in text if c.isprintable() or c in "\u202e\u202d")
    for path in ("/", f"/jobs/{job}"):
        answer = site.ask(path)
        assert answer.status == 200
        page = parsed(answer.body)
        assert {tag for tag, _ in page.elements} <= ALLOWED
        assert sum(tag == "style" for tag, _ in page.elements) == 1
        names = {name for _, attrs in page.elements for name in attrs}
        assert names <= {
            "lang",
            "charset",
            "name",
            "content",
            "http-equiv",
            "href",
            "rel",
            "class",
            "datetime",
            "title",
        }
        assert all(href.startswith(("/", "http://", "https://")) for href in page.hrefs())
        assert shown in page.text
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", answer.body)


@given(st.text(), st.text())
def test_no_text_breaks_out_of_an_element_or_an_attribute(inside: str, attribute: str) -> None:
    page = parsed(el("div", strange(inside, 10_000), title=attribute))
    assert [tag for tag, _ in page.elements] == ["div", "bdi"]
    assert set(page.elements[0][1]) == {"title"}


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        " javascript:alert(1)",
        "data:text/html,x",
        "//evil.example/",
        "/relative",
        "http:///x",
        "https://user:pw@git.example/",
        "https://git.example/\nx",
        "java\tscript:alert(1)",
        "http://[::1",
    ],
)
def test_only_web_urls_become_links(url: str) -> None:
    assert not is_web_url(url)
    assert "<a" not in link(url, "text")


def test_secrets_are_masked_wherever_they_turn_up(site: Site, rows: Rows) -> None:
    text = f"failed with {TOKEN} and ghp_0123456789abcdefghijABCDEFGHIJ"
    job = rows.running(title=text, last_error=text, branch=text, cancel_reason=text)
    rows.add("job_event", job_id=job, kind="failed", actor="w", detail=f'{{"why": "{text}"}}')
    rows.add(
        "agent_run", id=uuid4(), job_id=job, claim_seq=1, agent="opencode", host="h", worker="w", detail=text
    )
    rows.write(job_id=job, last_error=text, payload=f'{{"body": "{text}"}}')
    for path in ("/", f"/jobs/{job}"):
        body = site.ask(path).body
        assert "[redacted]" in body
        assert TOKEN not in body
        assert "ghp_" not in body


def test_history_of_one_job(site: Site, rows: Rows) -> None:
    parent = rows.finished(kind="plan")
    job = rows.finished(
        state="failed", last_error="the tests fail", parent_job_id=parent, branch="tireless/issue-2"
    )
    run = {
        "agent": "claude_code",
        "host": "h",
        "worker": "w",
        "outcome": "stalled",
        "exit_code": 143,
        "turns": 9,
    }
    rows.add(
        "agent_run", id=uuid4(), job_id=job, claim_seq=1, **run, cost_usd=2.5, input_tokens=1234, model="m-1"
    )
    for kind in ("enqueued", "claimed", "a kind of tomorrow"):
        rows.add("job_event", job_id=job, kind=kind, actor="poller", detail='{"seq": 4}')
    rows.write(job_id=job, state="done", done_at="now")
    page = parsed(site.ask(f"/jobs/{job}").body)
    for text in (
        "the tests fail",
        "tireless/issue-2",
        "stalled",
        "143",
        "1234",
        "m-1",
        "$2.50",
        "done",
        '{"seq": 4}',
    ):
        assert text in page.text, text
    assert page.text.index("enqueued") < page.text.index("a kind of tomorrow")
    assert f"/jobs/{parent}" in page.hrefs()
    assert "refresh" not in site.ask(f"/jobs/{job}").body  # it is over


def test_a_value_that_this_build_does_not_know_is_shown_as_it_is(site: Site, rows: Rows) -> None:
    rows.conn.execute("alter table job drop constraint job_kind_known")
    job = rows.job(kind="from_tomorrow")
    assert "from_tomorrow" in site.ask("/").body
    assert "from_tomorrow" in site.ask(f"/jobs/{job}").body


@pytest.mark.parametrize(
    "path", [f"/jobs/{UUID(int=1)}", "/jobs/1", "/jobs/", "/jobs", "/nothing", "/../etc/passwd"]
)
def test_what_is_not_there(site: Site, path: str) -> None:
    assert site.ask(path).status == 404


def test_lists_are_cut_and_say_so(site: Site, rows: Rows) -> None:
    for _ in range(120):
        rows.job()
    page = parsed(site.ask("/").body)
    assert "the next 50 of 120 pending" in page.text


def test_the_policy_lets_in_this_style_and_nothing_else(site: Site) -> None:
    import base64
    import hashlib

    answer = site.ask("/")
    style = re.search(r"<style>(.*?)</style>", answer.body, re.DOTALL)
    assert style is not None
    assert style[1] == STYLE
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest}'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_a_page_is_one_read_only_snapshot(conn: Any) -> None:
    import psycopg

    from tireless.store import status

    before = conn.execute("show statement_timeout").fetchone()
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), status.looking(conn):
        conn.execute("delete from job")
    assert conn.execute("show statement_timeout").fetchone() == before  # the limits end with the look
