"""One test a method of the client, named after it, on whatever forge there is; each reads back what the method did.

What the forge shows of it is asked on another way than the client's (`Scratch`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.support.real_forge import Scratch, Target
from tireless.entities import Forge, IssuePage, RepoRef
from tireless.forge import ForgeClient, NotFound, hidden

SLACK = timedelta(minutes=10)  # that a forge's clock may be off by


def numbers(page: IssuePage) -> set[int]:
    return {issue.ref.number for issue in page.issues}


def small_pages(client: ForgeClient) -> None:
    client.page_size = dict.fromkeys(client.page_size, "2")  # type: ignore[misc]  # of this one client


def test_each_method_has_its_test() -> None:
    """Whoever adds a method to the client adds its test here."""
    public = {
        name for name in vars(ForgeClient) if not name.startswith("_") and callable(vars(ForgeClient)[name])
    }
    tests = [name.removeprefix("test_") for name in globals() if name.startswith("test_")]
    assert "get_issue" in public
    assert {method for method in public if not any(test.startswith(method) for test in tests)} == set()


# Repository and user


def test_get_repository(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    found = client.get_repository(repo)
    assert found.ref.full_name == scratch.api("GET", "")["full_name"]
    assert found.default_branch == scratch.default_branch()
    assert (found.archived, found.empty) == (False, False)


def test_get_repository_that_is_missing(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    with pytest.raises(NotFound):
        client.get_repository(replace(repo, repo=f"none-{scratch.mark}"))


def test_clone_url(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    told = scratch.git("ls-remote", "--heads", client.clone_url(repo))
    assert f"refs/heads/{scratch.default_branch()}" in told


def test_own_login(client: ForgeClient, scratch: Scratch) -> None:
    user = scratch.api("GET", "/user", allow=(403,))  # to a GitHub App's token nobody tells
    assert client.own_login() == (user["login"] if user else None)
    made = client.create_comment(scratch.open_issue("Who am I"), "I am")
    assert client.own_login() in (made.author, None)


def test_user_permission(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    login = client.create_comment(scratch.open_issue("What may I do"), "This").author
    assert client.user_permission(repo, login) in ("admin", "write")


def test_user_role(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    login = client.create_comment(scratch.open_issue("What may I do"), "This").author
    assert client.user_role(repo, login) in ("admin", "write")
    assert client.user_role(repo, f"nobody-{scratch.mark}") in ("none", "read")


def test_limited_seconds(client: ForgeClient, repo: RepoRef) -> None:
    client.get_repository(repo)
    assert client.limited_seconds() == 0


def test_close(client: ForgeClient, repo: RepoRef) -> None:
    client.get_repository(repo)
    client.close()
    client.close()  # does no harm twice


# Issues


def test_list_opted_in_issues(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    label, other = scratch.label_name("opt-in"), scratch.label_name("other")
    wanted = scratch.open_issue("Wanted", "Do it: ä, 漢, 🐘 & <b>\n\nsecond line", [label, other])
    closed = scratch.open_issue("Closed", labels=[label])
    scratch.close_issue(closed)
    scratch.open_issue("Not asked for", labels=[other])
    page = scratch.settled(
        lambda: client.list_opted_in_issues(repo, label),
        "the one opted-in issue is listed",
        lambda page: numbers(page) == {wanted.number},
    )
    [issue] = page.issues
    shown = scratch.issue(wanted)
    assert (issue.ref, issue.title, set(issue.labels)) == (wanted, scratch.title("Wanted"), {label, other})
    assert issue.body.replace("\r\n", "\n") == "Do it: ä, 漢, 🐘 & <b>\n\nsecond line"
    assert (issue.author, issue.url) == (shown["user"]["login"], shown["html_url"])
    assert (issue.is_open, issue.is_pull_request) == (True, False)
    assert issue.updated_at is not None
    scratch.unlabel(wanted, label)
    scratch.settled(
        lambda: not client.list_opted_in_issues(repo, label).issues, "the issue is gone from the list"
    )


def test_list_opted_in_issues_unchanged(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    """By the forge's own 304 where it sends ETags, by the body's hash elsewhere; and a change is seen again."""
    label = scratch.label_name("opt-in")
    issue = scratch.open_issue("Wanted", labels=[label])
    page = scratch.settled(
        lambda: client.list_opted_in_issues(repo, label), "the issue is listed", lambda page: page.issues
    )

    def again() -> IssuePage:
        known = None if client.sends_etags else page.body_hash  # with the hash a lost ETag would not be noticed
        return client.list_opted_in_issues(repo, label, etag=page.etag, etag_key=page.etag_key, body_hash=known)

    assert (page.etag is not None) == client.sends_etags
    assert (again().not_modified, again().issues) == (True, ())
    scratch.api("PATCH", f"issues/{issue.number}", {"title": scratch.title("Changed")})
    changed = scratch.settled(again, "the change is seen", lambda page: not page.not_modified)
    assert [found.title for found in changed.issues] == [scratch.title("Changed")]


def test_list_opted_in_issues_of_a_label_that_does_not_exist(
    client: ForgeClient, scratch: Scratch, repo: RepoRef
) -> None:
    """Gitea drops it from the filter and answers with every open issue."""
    scratch.open_issue("Open, and not asked for")
    assert client.list_opted_in_issues(repo, scratch.label_name("never-made")).issues == ()


def test_list_opted_in_issues_without_pull_requests(
    client: ForgeClient, scratch: Scratch, repo: RepoRef
) -> None:
    label, head = scratch.label_name("opt-in"), scratch.branch("labelled")
    issue = scratch.open_issue("An issue", labels=[label])
    base = scratch.default_branch()
    pull = scratch.api("POST", "pulls", {"head": head, "base": base, "title": scratch.title("A pull")})
    ref = scratch.ref(pull["number"])
    scratch.label(ref, label)
    scratch.settled(
        lambda: numbers(client.list_opted_in_issues(repo, label)) == {issue.number}, "the issue alone is listed"
    )
    assert client.get_issue(ref).is_pull_request


def test_list_opted_in_issues_of_several_pages(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    """Of small ones, since a forge does not want to have a hundred issues written at once."""
    small_pages(client)
    label = scratch.label_name("opt-in")
    wanted = {scratch.open_issue(f"Issue {n}").number for n in range(5)}
    for number in wanted:
        client.add_label(scratch.ref(number), label)
    scratch.settled(lambda: numbers(client.list_opted_in_issues(repo, label)) == wanted, "all are listed")


def test_get_issue(client: ForgeClient, scratch: Scratch) -> None:
    label = scratch.label_name("one")
    ref = scratch.open_issue("Look at me", "body", [label])
    found, shown = client.get_issue(ref), scratch.issue(ref)
    assert (found.ref, found.title, found.body) == (ref, scratch.title("Look at me"), "body")
    assert (found.labels, found.is_open, found.is_pull_request) == ((label,), True, False)
    assert (found.author, found.url) == (shown["user"]["login"], shown["html_url"])
    scratch.close_issue(ref)
    assert not client.get_issue(ref).is_open


def test_get_issue_that_is_missing(client: ForgeClient, repo: RepoRef, scratch: Scratch) -> None:
    with pytest.raises(NotFound):
        client.get_issue(replace(scratch.open_issue("The last"), number=987654321))


def test_create_issue(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    known, missing = scratch.label_name("known"), scratch.label_name("missing")
    client.ensure_label(repo, known, "#336699", "is there")
    made = client.create_issue(repo, scratch.title("A child"), "first\n\nsecond", [known, missing])
    ref = scratch.ref(made.ref.number)
    shown = scratch.issue(ref)
    assert (shown["title"], shown["body"].replace("\r\n", "\n")) == (
        scratch.title("A child"),
        "first\n\nsecond",
    )
    assert scratch.labels(ref) == {known, missing}
    assert (made.ref, made.is_open, made.author) == (ref, True, shown["user"]["login"])


def test_find_issue_by_marker(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    marker = f"tireless {scratch.mark} child"
    since = datetime.now(UTC) - SLACK
    texts = {n: f"{hidden(f'{marker}:{n}')}\nNo. {n}" for n in (1, 12)}
    twelfth = client.create_issue(repo, scratch.title("12"), texts[12], []).ref
    first = client.create_issue(repo, scratch.title("1"), texts[1], []).ref
    scratch.ref(twelfth.number)
    scratch.close_issue(scratch.ref(first.number))  # the state does not matter

    def find(n: int, since: datetime | None) -> int | None:
        found = client.find_issue_by_marker(repo, f"{marker}:{n}", since)
        return found.ref.number if found is not None else None

    for moment in (since, None):
        scratch.settled(partial(find, 1, moment), "No. 1 is found", lambda number: number == first.number)
        assert find(12, moment) == twelfth.number
        assert find(2, moment) is None


# Comments


def test_create_comment_and_list_comments(client: ForgeClient, scratch: Scratch) -> None:
    ref = scratch.open_issue("Talk")
    made = [client.create_comment(ref, text) for text in ("one", "two\n\nmore: ä 漢 🐘", "three")]
    shown = scratch.settled(lambda: scratch.comments(ref), "three comments", lambda found: len(found) == 3)
    assert [c["id"] for c in shown] == [c.id for c in made]
    assert [c["body"].replace("\r\n", "\n") for c in shown] == ["one", "two\n\nmore: ä 漢 🐘", "three"]


def test_list_comments(client: ForgeClient, scratch: Scratch) -> None:
    """Oldest first, and of all pages."""
    small_pages(client)
    ref = scratch.open_issue("Talk")
    texts = [f"comment {n}" for n in range(5)]
    for text in texts:
        scratch.api("POST", f"issues/{ref.number}/comments", {"body": text})
    found = scratch.settled(lambda: client.list_comments(ref), "five comments", lambda found: len(found) == 5)
    shown = scratch.comments(ref)
    assert [c.body for c in found] == texts
    assert [(c.id, c.author, c.url) for c in found] == [
        (c["id"], c["user"]["login"], c["html_url"]) for c in shown
    ]
    assert all(c.created_at is not None and abs(c.created_at - datetime.now(UTC)) < SLACK for c in found)


def test_edit_comment(client: ForgeClient, scratch: Scratch) -> None:
    ref = scratch.open_issue("Talk")
    made = client.create_comment(ref, "before")
    client.edit_comment(ref, made.id, "after")
    client.edit_comment(ref, made.id, "after")  # the same once more is no error
    scratch.settled(lambda: [c["body"] for c in scratch.comments(ref)] == ["after"], "the comment is edited")


def test_upsert_comment(client: ForgeClient, scratch: Scratch) -> None:
    ref, marker = scratch.open_issue("Talk"), f"tireless {scratch.mark} status"
    quoted = client.create_comment(ref, f"> {hidden(marker)}\nquoted")
    first = client.upsert_comment(ref, marker, "queued")
    scratch.settled(lambda: len(scratch.comments(ref)) == 2, "both comments are listed")
    same = client.upsert_comment(ref, marker, "queued")
    second = client.upsert_comment(ref, marker, "done\n\n| a | b |\n| - | - |")
    assert first.id == same.id == second.id
    shown = {c["id"]: c["body"].replace("\r\n", "\n") for c in scratch.comments(ref)}
    assert shown == {
        quoted.id: f"> {hidden(marker)}\nquoted",
        first.id: f"{hidden(marker)}\ndone\n\n| a | b |\n| - | - |",
    }


# Labels


def test_ensure_label(client: ForgeClient, scratch: Scratch, repo: RepoRef, target: Target) -> None:
    name = scratch.label_name("state/queued")
    client.ensure_label(repo, name, "#1D76db", "waits: ä", exclusive=True)
    made = scratch.repository_label(name)
    assert made is not None
    assert (made["color"].lower(), made["description"]) == ("1d76db", "waits: ä")
    assert made.get("exclusive", True)  # GitHub has no such thing
    client.ensure_label(repo, name, "#ff0000", "another text")
    assert scratch.repository_label(name) == made


def test_add_label(client: ForgeClient, scratch: Scratch) -> None:
    """A missing one is made; one that somebody deleted meanwhile is made again."""
    ref, name, kept = scratch.open_issue("Label me"), scratch.label_name("new"), scratch.label_name("kept")
    scratch.label(ref, kept)
    client.add_label(ref, name)
    client.add_label(ref, name)
    assert scratch.labels(ref) == {name, kept}
    scratch.delete_label(name)
    assert scratch.labels(ref) == {kept}
    client.add_label(ref, name)
    assert scratch.labels(ref) == {name, kept}


def test_remove_label(client: ForgeClient, scratch: Scratch) -> None:
    taken, kept = scratch.label_name("taken: off/now"), scratch.label_name("kept")
    ref = scratch.open_issue("Label me", labels=[taken, kept])
    client.remove_label(ref, taken)
    assert scratch.labels(ref) == {kept}
    client.remove_label(ref, taken)
    client.remove_label(ref, scratch.label_name("never-made"))
    assert scratch.labels(ref) == {kept}


def test_set_state_label(client: ForgeClient, scratch: Scratch) -> None:
    prefix, other = scratch.label_name("state/"), scratch.label_name("other")
    ref = scratch.open_issue("Label me", labels=[other])
    for state in ("queued", "running", "running", "delivered"):
        client.set_state_label(ref, prefix, prefix + state, "#0e8a16", state)
        assert scratch.labels(ref) == {prefix + state, other}
    scratch.label(ref, scratch.label_name("state/by-hand"))  # not exclusive: the forge does not take it off
    client.set_state_label(ref, prefix, prefix + "queued", "#0e8a16", "queued")
    assert scratch.labels(ref) == {prefix + "queued", other}


def test_last_labelling(client: ForgeClient, scratch: Scratch) -> None:
    label, never = scratch.label_name("opt-in"), scratch.label_name("never-set")
    ref = scratch.open_issue("Who asked", labels=[label])
    author = scratch.issue(ref)["user"]["login"]
    first = scratch.settled(lambda: client.last_labelling(ref, label), "the labelling is told")
    assert first.login == author
    assert first.at is not None
    assert abs(first.at - datetime.now(UTC)) < SLACK
    client.create_comment(ref, "1")  # looks like a setting in Gitea's history, but is none
    scratch.unlabel(ref, label)
    scratch.label(ref, label)
    second = scratch.settled(
        lambda: client.last_labelling(ref, label), "the second labelling", lambda found: found.id != first.id
    )
    assert second.id > first.id
    assert client.last_labelling(ref, never) is None


# Pull requests


def test_create_pull_request(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    head, base = scratch.branch("work"), scratch.default_branch()
    made = client.create_pull_request(repo, head, base, scratch.title("Work"), "Closes nothing.", draft=False)
    scratch.ref(made.number)
    shown = scratch.pull(made.number)
    assert (shown["head"]["ref"], shown["base"]["ref"], shown["state"]) == (head, base, "open")
    assert (shown["title"], shown["body"], shown["draft"]) == (scratch.title("Work"), "Closes nothing.", False)
    assert (made.head, made.base, made.is_open, made.merged, made.draft) == (head, base, True, False, False)
    assert made.url == shown["html_url"]
    again = scratch.settled(
        lambda: client.create_pull_request(repo, head, base, scratch.title("Twice"), "", draft=False),
        "the one that is there is found",
    )
    assert (again.number, again.title) == (made.number, scratch.title("Work"))


def test_find_pull_request(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    """The open one, even where a closed one of the same branches is in front of it."""
    head, base = scratch.branch("deep/work"), scratch.default_branch()
    assert client.find_pull_request(repo, head, base) is None
    first = client.create_pull_request(repo, head, base, scratch.title("First"), "", draft=False)
    scratch.settled(lambda: client.find_pull_request(repo, head, base) == first, "the first is found")
    scratch.close_issue(scratch.ref(first.number))
    scratch.settled(lambda: client.find_pull_request(repo, head, base) is None, "the closed one is not found")
    second = client.create_pull_request(repo, head, base, scratch.title("Second"), "", draft=False)
    scratch.ref(second.number)
    found = scratch.settled(lambda: client.find_pull_request(repo, head, base), "the second is found")
    assert (found.number, found.head, found.base) == (second.number, head, base)


def test_edit_pull_request(client: ForgeClient, scratch: Scratch, repo: RepoRef) -> None:
    """A draft stays one, whatever its new title is."""
    head, base = scratch.branch("work"), scratch.default_branch()
    made = client.create_pull_request(repo, head, base, scratch.title("Draft"), "before", draft=True)
    scratch.ref(made.number)
    draft = scratch.pull(made.number)["draft"]
    assert draft or scratch.target.kind is Forge.GITHUB  # where not every plan has drafts
    client.edit_pull_request(repo, made.number, scratch.title("Better"), None)
    client.edit_pull_request(repo, made.number, None, "after")
    client.edit_pull_request(repo, made.number, None, None)
    shown = scratch.pull(made.number)
    assert shown["title"].removeprefix("WIP: ") == scratch.title("Better")
    assert (shown["body"], shown["draft"], shown["state"]) == ("after", draft, "open")


def test_nothing_of_a_test_stays(target: Target, tmp_path: Path) -> None:
    """The end of a test takes away what the test made, whoever's hands made it."""
    first, other = Scratch(target, tmp_path), Scratch(target, tmp_path)
    try:
        kept = other.open_issue("Another test's", labels=[other.label_name("kept")])
        ref = first.open_issue("Mine", labels=[first.label_name("mine")])
        first.branch("work")
        first.close()
        answer = other.api("GET", f"issues/{ref.number}", allow=(404, 410))
        assert answer is None or answer["state"] == "closed"
        assert other.repository_label(first.label_name("mine")) is None
        assert not [name for name in other.branches() if first.mark in name]
        assert other.issue(kept)["state"] == "open"
        assert other.labels(kept) == {other.label_name("kept")}
    finally:
        first.close()
        other.close()
