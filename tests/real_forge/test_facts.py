"""What the client and the fakes take for granted of a forge, asked of whatever forge there is.

A test that fails on a real one alone tells where the fake is wrong; the client may be, too.
"""

from __future__ import annotations

from tests.support.real_forge import Scratch
from tireless.entities import Forge


def github(scratch: Scratch) -> bool:
    return scratch.target.kind is Forge.GITHUB


def listed(scratch: Scratch, labels: str) -> set[int]:
    """Of this test's issues those that the filter lets through, of the newest page."""
    rows = scratch.api("GET", f"issues?state=open&labels={labels}&per_page=100&limit=50")
    return {row["number"] for row in rows if scratch.mark in row["title"]}


def test_an_unknown_label_in_the_filter(scratch: Scratch) -> None:
    """Gitea and Forgejo leave it out, and so list every open issue; it is case that tells labels apart there."""
    label = scratch.label_name("known")
    one, two = scratch.open_issue("One", labels=[label]).number, scratch.open_issue("Two").number
    scratch.settled(lambda: listed(scratch, label) == {one}, "the labelled issue is listed")
    unknown = set() if github(scratch) else {one, two}
    assert listed(scratch, scratch.label_name("unknown")) == unknown
    assert listed(scratch, f"{label},{scratch.label_name('unknown')}") == (set() if github(scratch) else {one})


def test_two_labels_of_one_name(scratch: Scratch) -> None:
    """GitHub refuses the second. The others make it, and their filter then wants both on an issue."""
    label, colour = scratch.label_name("twin"), "aabbcc" if github(scratch) else "#aabbcc"
    issue = scratch.open_issue("One", labels=[label])
    again = scratch.api("POST", "labels", {"name": label, "color": colour}, allow=(422,))
    if github(scratch):
        assert again is None
        return
    assert listed(scratch, label) == set()
    scratch.api("POST", f"issues/{issue.number}/labels", {"labels": [again["id"]]})
    assert listed(scratch, label) == {issue.number}


def test_a_list_of_labels_that_is_longer_than_a_page(scratch: Scratch) -> None:
    """The next page is there for who asks for it, whether there is a link to it or not."""
    scratch.open_issue("One", labels=[scratch.label_name(str(n)) for n in range(3)])
    size = "per_page" if github(scratch) else "limit"
    pages = [scratch.api("GET", f"labels?{size}=2&page={page}") for page in (1, 2)]
    assert [len(page) > 0 for page in pages] == [True, True]
    assert not {label["id"] for label in pages[0]} & {label["id"] for label in pages[1]}


def test_a_label_that_is_added_and_unknown(scratch: Scratch) -> None:
    issue, name = scratch.open_issue("One"), scratch.label_name("unknown")
    answer = scratch.api("POST", f"issues/{issue.number}/labels", {"labels": [name]})
    assert [label["name"] for label in answer] == ([name] if github(scratch) else [])
    if not github(scratch):
        for given in ([999999999], [name]):
            assert scratch.api("POST", f"issues/{issue.number}/labels", {"labels": given}) == []
        mixed = {"labels": [999999999, name]}
        assert scratch.api("POST", f"issues/{issue.number}/labels", mixed, allow=(400,)) is None


def test_comments_of_a_missing_issue(scratch: Scratch) -> None:
    """404 on GitHub; Gitea says 500, and 404 at the issue's own place."""
    for method, body in (("GET", None), ("POST", {"body": "x"})):
        assert scratch.api(method, "issues/987654321/comments", body, allow=(404, 410, 500)) is None
    assert scratch.api("GET", "issues/987654321", allow=(404, 410)) is None


def test_empty_texts_are_refused(scratch: Scratch) -> None:
    issue = scratch.open_issue("One")
    assert scratch.api("POST", "issues", {"title": ""}, allow=(422,)) is None
    assert scratch.api("POST", f"issues/{issue.number}/comments", {"body": ""}, allow=(422,)) is None


def test_a_pull_request_of_branches_that_have_one(scratch: Scratch) -> None:
    head, base = scratch.branch("work"), scratch.default_branch()
    wanted = {"head": head, "base": base, "title": scratch.title("One")}
    first = scratch.api("POST", "pulls", wanted)
    scratch.ref(first["number"])
    assert scratch.api("POST", "pulls", wanted, allow=(422 if github(scratch) else 409,)) is None
    missing = {**wanted, "head": f"{scratch.mark}/none"}
    assert scratch.api("POST", "pulls", missing, allow=(422 if github(scratch) else 404,)) is None
    if not github(scratch):
        scratch.api("PATCH", f"issues/{first['number']}", {"state": "closed"})
        second = scratch.api("POST", "pulls", wanted)
        scratch.ref(second["number"])
        assert scratch.api("GET", f"pulls/{base}/{head}")["number"] in (first["number"], second["number"])


def test_the_branch_of_a_pull_request_that_is_gone(scratch: Scratch) -> None:
    """Gitea's and Forgejo's head then names the pull request's own ref; the label is the branch still."""
    head, base = scratch.branch("work"), scratch.default_branch()
    made = scratch.api("POST", "pulls", {"head": head, "base": base, "title": scratch.title("One")})
    scratch.ref(made["number"])
    scratch.delete_branches()
    shown = scratch.settled(lambda: scratch.pull(made["number"]), "the pull request")
    assert head in (shown["head"]["ref"], shown["head"]["label"])


def test_the_history_of_a_label_that_was_deleted(scratch: Scratch) -> None:
    """Gitea forgets that it was ever set."""
    label = scratch.label_name("short-lived")
    issue = scratch.open_issue("One", labels=[label])
    if github(scratch):
        return
    rows = scratch.settled(lambda: scratch.api("GET", f"issues/{issue.number}/timeline"), "the history")
    assert [(row["type"], row["body"], row["label"]["name"]) for row in rows] == [("label", "1", label)]
    scratch.delete_label(label)
    assert not scratch.api("GET", f"issues/{issue.number}/timeline")
