"""repo: what is watched is what the forge says it is, and what the operator asked for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.ctl.conftest import TOKEN_VARIABLE, Ctl
from tests.support.forge import FakeForge
from tests.support.store import claim, queued, running, spend, track
from tireless.entities import Forge, JobState, PollResult, RepoRef
from tireless.store import jobs, repos, writes
from tireless.store.queries import Connection

REPO_KEYS = {
    "repo", "forge", "host", "owner", "name", "enabled", "interval_seconds", "quiet", "id", "clone_url",
    "default_branch", "max_running", "verify_command", "daily_usd", "daily_jobs", "held_until", "hold_reason",
    "last_polled_at", "last_full_sweep_at", "next_poll_at",
    "poll_result", "poll_detail", "poll_failures", "created_at",
}  # fmt: skip


def test_add_takes_branch_name_and_clone_url_from_the_forge(ctl: Ctl, forge: FakeForge) -> None:
    forge.add_repo("Acme/Site", default_branch="trunk")
    ctl.forge = forge

    answer = ctl("repo", "add", f"{forge.kind}:{forge.host}/acme/site", "--json").ok()

    assert set(answer.json) == REPO_KEYS
    assert answer.json["repo"] == f"{forge.kind}:{forge.host}/Acme/Site"
    assert answer.json["default_branch"] == "trunk"
    assert answer.json["clone_url"] == f"{forge.url}/Acme/Site.git"


def test_add_knows_the_forge_of_a_url_by_its_host(ctl: Ctl, gitea: FakeForge) -> None:
    gitea.add_repo("acme/site")
    ctl.forge = gitea
    text = ctl("repo", "add", f"{gitea.url}/acme/site.git").ok().out
    assert f"tracking gitea:{gitea.host}/acme/site (main, every 60 s)" in text


def test_add_needs_no_forge_where_there_is_only_one(ctl: Ctl, gitea: FakeForge) -> None:
    gitea.add_repo("acme/site")
    ctl.forge = gitea
    assert ctl("repo", "add", "acme/site", "--json").ok().json["host"] == gitea.host


def test_add_makes_the_labels_when_asked_to(ctl: Ctl, forge: FakeForge) -> None:
    made = forge.add_repo("acme/site")
    ctl.forge = forge
    ctl("repo", "add", "acme/site", "--make-labels").ok()
    assert {"tireless", "tireless/plan", "tireless/agent:oc"} <= {label.name for label in made.labels}


def test_set_makes_the_labels_too(ctl: Ctl, forge: FakeForge) -> None:
    made = forge.add_repo("acme/site")
    ctl.forge = forge
    ctl("repo", "add", "acme/site").ok()
    assert made.labels == []
    assert "made the labels of" in ctl("repo", "set", "acme/site", "--make-labels").ok().out
    assert {"tireless", "tireless/plan", "tireless/agent:oc"} <= {label.name for label in made.labels}
    answer = ctl("repo", "set", "acme/site", "--make-labels", "--interval", "300", "--json").ok()
    assert answer.json["interval_seconds"] == 300
    assert len(made.labels) == 6, "once each"
    forge.down()
    answer = ctl("repo", "set", "acme/site", "--make-labels", "--interval", "600")
    assert answer.code == 1
    assert "make them by hand" in answer.err
    (found,) = ctl("repo", "list", "--json").ok().json
    assert found["interval_seconds"] == 300, "all of it or nothing"


def test_add_sets_what_is_given(ctl: Ctl, conn: Connection) -> None:
    ctl(
        "repo", "add", "github:github.com/acme/site", "--offline", "--interval", "300",
        "--quiet", "22:00-07:00", "--zone", "Europe/Berlin", "--max-running", "2", "--verify", "make test",
        "--branch", "trunk", "--clone-url", "https://mirror.test/site.git", "--disabled",
    ).ok()  # fmt: skip
    (repo,) = repos.tracked(conn, disabled_too=True)
    assert repo.ref == RepoRef(Forge.GITHUB, "github.com", "acme", "site")
    assert (repo.clone_url, repo.default_branch) == ("https://mirror.test/site.git", "trunk")
    assert (repo.max_running, repo.verify_command) == (2, "make test")
    schedule = repo.schedule
    assert (schedule.interval_seconds, schedule.enabled, schedule.quiet_zone) == (300, False, "Europe/Berlin")
    assert (str(schedule.quiet_from), str(schedule.quiet_until)) == ("22:00:00", "07:00:00")


def test_offline_asks_nobody(ctl: Ctl, gitea: FakeForge) -> None:
    ctl.forge = gitea
    answer = ctl("repo", "add", "acme/site", "--offline", "--json").ok()
    assert answer.json["clone_url"] == f"{gitea.url}/acme/site.git"
    assert gitea.requests == []


def test_added_twice_is_refused_in_any_spelling(ctl: Ctl) -> None:
    ctl("repo", "add", "github:github.com/acme/site", "--offline").ok()
    again = ctl("repo", "add", "https://github.com/ACME/Site", "--offline")
    assert again.code == 1
    assert "is tracked already; repo set changes its settings" in again.err


@pytest.mark.parametrize("fault", ["missing", "token", "archived", "empty"])
def test_a_repository_that_cannot_be_worked_on_is_refused(
    ctl: Ctl, forge: FakeForge, conn: Connection, fault: str
) -> None:
    if fault != "missing":
        made = forge.add_repo("acme/site", empty=fault == "empty")
        made.archived = fault == "archived"
    forge.token_works = fault != "token"
    ctl.forge = forge

    answer = ctl("repo", "add", "acme/site")

    assert answer.code == 1
    says = {"missing": "404", "token": "401", "archived": "is archived", "empty": "push a first commit"}
    assert says[fault] in answer.err
    assert forge.token not in answer.err
    assert repos.tracked(conn, disabled_too=True) == []


def test_a_missing_token_is_a_configuration_error(
    ctl: Ctl, gitea: FakeForge, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctl.forge = gitea
    monkeypatch.delenv(TOKEN_VARIABLE)
    answer = ctl("repo", "add", "acme/site")
    assert answer.code == 78
    assert f"names ${TOKEN_VARIABLE}, which is not set" in answer.err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["acme"], "names no repository"),
        (["acme/site"], "which forge acme/site is on is not clear"),
        (["svn:host/acme/site"], "there is github, gitea, forgejo"),
        (["https://host.test/acme"], "names no repository"),
        (["github:github.com/acme/site", "--quiet", "22-7"], "neither `off` nor hours"),
        (["github:github.com/acme/site", "--quiet", "25:00-07:00"], "neither `off` nor hours"),
        (["github:github.com/acme/site", "--interval", "1"], "between 5 and 86400"),
        (["github:github.com/acme/site", "--max-running", "0"], "neither `none` nor a number"),
        (["github:github.com/acme/site", "--offline", "--make-labels"], "leave one out"),
        (["github:github.com/acme/site", "--offline", "--zone", "Mars/Olympus"], "no time zone 'Mars/Olympus'"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(ctl: Ctl, argv: list[str], says: str) -> None:
    answer = ctl("repo", "add", *argv)
    assert answer.code == 64
    assert says in answer.err


@pytest.mark.parametrize(
    "argv",
    [
        ["https://ann:hunter22@host.test/acme/site"],
        ["https://ann:hunter22@host.test"],
        ["https://ann:hunter22@host.test:xx/acme/site"],
        ["github:github.com/acme/site", "--offline", "--clone-url", "https://ann:hunter22@h.test/x"],
    ],
)
def test_a_password_in_a_url_is_neither_kept_nor_repeated(ctl: Ctl, conn: Connection, argv: list[str]) -> None:
    answer = ctl("repo", "add", *argv)
    assert answer.code == 64
    assert "hunter22" not in answer.out + answer.err
    assert repos.tracked(conn, disabled_too=True) == []


def test_list_says_what_is_in_trouble(ctl: Ctl, conn: Connection) -> None:
    assert "no repository is tracked" in ctl("repo", "list").ok().out
    repo = track(conn)
    repos.record_poll(conn, repo.id, PollResult.MISSING, detail="404 from the forge")
    text = ctl("repo", "list").ok().out
    assert "missing" in text
    assert "404 from the forge" in text
    (document,) = ctl("repo", "list", "--json").ok().json
    assert (document["poll_result"], document["poll_failures"]) == ("missing", 1)


def test_set_changes_only_what_is_given(ctl: Ctl, conn: Connection) -> None:
    track(conn, verify_command="make", interval_seconds=120)
    document = ctl("repo", "set", "acme/site", "--interval", "30", "--json").ok().json
    assert (document["interval_seconds"], document["verify_command"]) == (30, "make")
    ctl("repo", "set", "acme/site", "--verify", "", "--max-running", "3", "--quiet", "1:00-2:00").ok()
    document = ctl("repo", "set", "1", "--max-running", "none", "--quiet", "off", "--json").ok().json
    assert (document["verify_command"], document["max_running"], document["quiet"]) == (None, None, None)


def test_set_without_a_change_is_a_usage_error(ctl: Ctl, conn: Connection) -> None:
    track(conn)
    assert ctl("repo", "set", "acme/site").code == 64


def test_disable_enable_and_poll(ctl: Ctl, conn: Connection) -> None:
    repo = track(conn)
    repos.record_poll(conn, repo.id, PollResult.UNCHANGED, wait_seconds=3600)
    assert ctl("repo", "disable", "acme/site", "--json").ok().json["enabled"] is False
    refused = ctl("repo", "poll", "acme/site")
    assert refused.code == 1
    assert "repo enable" in refused.err
    assert ctl("repo", "enable", "acme/site", "--json").ok().json["enabled"] is True
    repos.record_poll(conn, repo.id, PollResult.UNCHANGED, wait_seconds=3600)
    assert repos.take_due(conn, 5) == []
    ctl("repo", "poll", "acme/site").ok()
    assert [r.id for r, _ in repos.take_due(conn, 5)] == [repo.id]


def test_the_same_name_on_two_hosts_must_be_written_in_full(ctl: Ctl, conn: Connection) -> None:
    track(conn)
    other = track(conn, RepoRef(Forge.FORGEJO, "code.test", "acme", "site"))
    answer = ctl("repo", "disable", "acme/site")
    assert answer.code == 1
    assert "gitea:forge.test/acme/site, forgejo:code.test/acme/site; write it in full" in answer.err
    assert ctl("repo", "disable", "code.test/acme/site", "--json").ok().json["id"] == other.id


def test_an_unknown_repository_lists_what_there_is(ctl: Ctl, conn: Connection) -> None:
    track(conn)
    answer = ctl("repo", "poll", "acme/sight")
    assert answer.code == 1
    assert "no tracked repository 'acme/sight'; tracked: gitea:forge.test/acme/site" in answer.err


def test_remove_tells_one_job_from_several(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1, repo=track(conn))
    assert "has 1 job that waits or runs; --cancel" in ctl("repo", "remove", "acme/site").err


def test_a_forge_that_does_not_answer_says_nothing_about_the_name(ctl: Ctl, gitea: FakeForge) -> None:
    ctl.forge = gitea
    gitea.down()
    answer = ctl("repo", "add", "acme/site")
    assert answer.code == 1
    assert answer.err.endswith("Connection refused; try again, or add it with --offline\n")


def test_remove_keeps_history_and_refuses_live_jobs(ctl: Ctl, conn: Connection) -> None:
    repo = track(conn)
    first, second = queued(conn, 1, 2, repo=repo)
    running(conn)
    refused = ctl("repo", "remove", "acme/site")
    assert refused.code == 1
    assert "has 2 jobs that wait or run; --cancel ends them" in refused.err

    document = ctl("repo", "remove", "acme/site", "--cancel", "--json").ok().json

    assert set(document["cancelled"]) == {str(first.id), str(second.id)}
    assert repos.tracked(conn, disabled_too=True) == []
    ran, waited = jobs.get(conn, first.id), jobs.get(conn, second.id)
    assert ran is not None
    assert waited is not None
    assert (ran.state, ran.cancel_requested_at is not None) == (JobState.RUNNING, True)
    assert waited.state is JobState.ABANDONED
    assert writes.of_job(conn, waited.id) != []  # its issue is told


def test_a_budget_and_its_hold(ctl: Ctl, conn: Connection) -> None:
    repo = track(conn)
    queued(conn, 1, 2, repo=repo)
    spend(conn, running(conn), 2.5)
    document = ctl("repo", "set", "acme/site", "--daily-usd", "2.50", "--daily-jobs", "5", "--json").ok().json
    assert (document["daily_usd"], document["daily_jobs"]) == (2.5, 5)
    assert "2.50/2.50 USD, 1/5 jobs" in ctl("repo", "list").ok().out
    until = datetime.now(UTC) + timedelta(hours=1)
    repos.hold(conn, repo.id, "the repository's budget of 2.50 USD a day is used up (2.50 spent)", until)
    assert claim(conn) is None
    listed = ctl("repo", "list").ok().out
    assert "held" in listed
    assert "budget of 2.50 USD a day is used up (2.50 spent) (until" in listed
    assert "HELD" in ctl("status").ok().out
    assert [r["hold_reason"] is None for r in ctl("status", "--json").ok().json["repos"]["held"]] == [False]
    assert ctl("repo", "resume", "acme/site").ok().out.startswith("resumed ")
    assert claim(conn) is not None
    assert ctl("repo", "resume", "acme/site").ok().out.startswith("was not held")
    document = ctl("repo", "set", "acme/site", "--daily-usd", "none", "--json").ok().json
    assert (document["daily_usd"], document["daily_jobs"]) == (None, 5)


def test_a_changed_budget_holds_the_repository_and_lets_it_go(ctl: Ctl, conn: Connection) -> None:
    repo = track(conn)
    queued(conn, 1, 2, repo=repo)
    spend(conn, running(conn), 2.5)
    ctl("repo", "set", "acme/site", "--daily-usd", "2").ok()
    assert claim(conn) is None
    ctl("repo", "set", "acme/site", "--interval", "600").ok()
    assert claim(conn) is None
    ctl("repo", "set", "acme/site", "--daily-usd", "3").ok()
    assert claim(conn) is not None


def test_resume_wakes_the_runners(ctl: Ctl, conn: Connection) -> None:
    repo = track(conn)
    queued(conn, 1, repo=repo)
    repos.hold(conn, repo.id, "over", datetime.now(UTC) + timedelta(hours=1))
    conn.execute("listen tireless_lane_claude_code")
    ctl("repo", "resume", "acme/site").ok()
    assert [n.channel for n in conn.notifies(timeout=5, stop_after=1)] == ["tireless_lane_claude_code"]
