"""Who asked: whose label starts work, and whose words reach the agent.

The label. Whoever the forge lets set the opt-in label could start an agent, and forges are generous: an issue template
sets labels for any stranger, and so do workflows and bots. So the issue's history is asked who set the label last, just
before anything starts, and that one must be entitled:

    listed in who.allow                  yes
    tireless's own account               yes: children that the operator's policy opted in, `tireless-ctl retry`
    a bot                                only if it is listed in who.bots
    anybody else                         by what the forge says they may do (who.require: write, triage, anyone)
    not told by the forge                who.unknown: refuse, with a word on what to do, or allow

GitHub tells permissions to any token that may read the repository. Gitea and Forgejo tell them to its administrators
only; to others they list who may be assigned an issue, which are those who may write (see GiteaClient.user_role). So
the default works with the token of an account that has write access. With require = "anyone" nothing is asked.

A job whose label was set by somebody else ends as abandoned before its agent starts. The issue gets one comment, the
label stays on, and the issue makes no new job until the label has been taken off and set again: seen by the poller
as an issue that left the list, or as a later setting in the issue's history.

The words. Who sets a label has read what the issue said then. Title and body are taken as they were when the poller
first saw the label and queued the job. If they have changed since, the new text counts only if the issue's author has
write permission: nobody but the author and people with that permission can change it. Comments that were made or
changed after the label was set count only from people with write permission. What was changed between the setting
of the label and the poll that saw it (webhooks make that short) is taken for what the label meant.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime

from tireless.config import Standing, UnknownAsker, WhoConfig
from tireless.entities import Comment, Issue, IssueRef, Labelling
from tireless.forge import Forbidden, ForgeClient, NotFound, Refused
from tireless.store.intake import BODY_CHARS, TITLE_CHARS, stored
from tireless.store.refusals import JobText

log = logging.getLogger(__name__)

MOST_ASKED = 20  # commenters of one issue whose permissions are asked for; the words of more are left out

_WAY_OUT = "Somebody who has that permission can start it: take the label off and set it again."
_OPERATORS_WAY_OUT = (
    "An operator of tireless can list people in `who.allow`, give tireless's account administration of the "
    'repository, or set `who.unknown = "allow"`; then take the label off and set it again.'
)
_SUFFICIENT = {Standing.WRITE: ("admin", "write"), Standing.TRIAGE: ("admin", "write", "triage")}


@dataclass(frozen=True, slots=True)
class Judgement:
    entitled: bool
    why: str  # for people, where not entitled
    labelling: Labelling | None = None  # where known


class Askers:
    """The people of one issue. What the forge says about each is asked once. ForgeError where it cannot be asked."""

    def __init__(self, config: WhoConfig, opt_in: str, client: ForgeClient, issue: IssueRef) -> None:
        self._config, self._opt_in, self._client, self._issue = config, opt_in, client, issue
        self._roles: dict[str, str | None] = {}

    def judge(self) -> Judgement:
        """Whether the one who set the opt-in label may start work."""
        if self._config.require is Standing.ANYONE:
            return Judgement(True, "")
        found = last_labelling(self._client, self._issue, self._opt_in)
        label = f"label `{self._opt_in}`"
        if found is None or not found.login:
            return self._unknown(f"The forge does not tell who set the {label}.", found)
        if self._is_listed(found.login) or self._is_own(found.login):
            return Judgement(True, "", found)
        by = f"The {label} was set by `{found.login}`"
        if found.is_bot:
            return Judgement(False, f"{by}, a bot that is not listed in `who.bots`. {_WAY_OUT}", found)
        role = self._role(found.login)
        if role is None:
            return self._unknown(
                f"{by}, and the forge does not tell tireless what `{found.login}` may do.", found
            )
        if role in _SUFFICIENT[self._config.require]:
            return Judgement(True, "", found)
        lacks = f"who does not have {self._config.require} permission here"
        return Judgement(False, f"{by}, {lacks}. {_WAY_OUT}", found)

    def text(self, issue: Issue, kept: JobText | None) -> Issue:
        """The issue with the title and body that count; see the module."""
        if kept is None:
            return issue
        now = (stored(issue.title, TITLE_CHARS), stored(issue.body, BODY_CHARS))
        if now != (kept.title, kept.body) and self.may_write(issue.author):
            return issue
        return replace(issue, title=kept.title, body=kept.body)

    def remarks(self, comments: list[Comment], since: datetime | None) -> list[Comment]:
        """Those that count: unchanged since before `since`, when the label was set, or of somebody who may write."""
        return [c for c in comments if _is_before(c, since) or self.may_write(c.author)]

    def may_write(self, login: str) -> bool:
        if not login:
            return False
        if self._is_listed(login) or self._is_own(login):
            return True
        if login.casefold() not in self._roles and len(self._roles) >= MOST_ASKED:
            return False
        role = self._role(login)
        if role is None:
            return self._config.unknown is UnknownAsker.ALLOW
        return role in _SUFFICIENT[Standing.WRITE]

    def _is_listed(self, login: str) -> bool:
        listed = {name.casefold() for name in (*self._config.allow, *self._config.bots)}
        return login.casefold() in listed

    def _is_own(self, login: str) -> bool:
        own = self._client.own_login()
        return own is not None and own.casefold() == login.casefold()

    def _role(self, login: str) -> str | None:
        key = login.casefold()
        if key not in self._roles:
            try:
                self._roles[key] = self._client.user_role(self._issue.repo_ref, login)
            except Forbidden as e:
                log.warning("permission not told issue=%s login=%s error=%s", self._issue, login, e)
                self._roles[key] = None
        return self._roles[key]

    def _unknown(self, what: str, found: Labelling | None) -> Judgement:
        if self._config.unknown is UnknownAsker.ALLOW:
            return Judgement(True, "", found)
        return Judgement(False, f"{what} {_OPERATORS_WAY_OUT}", found)


def last_labelling(client: ForgeClient, issue: IssueRef, label: str) -> Labelling | None:
    """None too where the forge has no such history, or keeps it from this token."""
    try:
        return client.last_labelling(issue, label)
    except (Forbidden, NotFound, Refused) as e:
        log.warning("history not told issue=%s error=%s", issue, e)
        return None


def _is_before(comment: Comment, since: datetime | None) -> bool:
    """Forges tell whole seconds: one of the same second counts as later."""
    times = [t for t in (comment.created_at, comment.updated_at) if t is not None]
    return since is None or (bool(times) and max(times) < since)
