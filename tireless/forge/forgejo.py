"""Forgejo: as Gitea in all that is asked of it here. Its own differences are in its answers, which are read for both:
null rows in lists of pull requests, 413 for a body that is too long, labels of the organisation in filters."""

from __future__ import annotations

from tireless.forge.gitea import GiteaClient


class ForgejoClient(GiteaClient):
    pass
