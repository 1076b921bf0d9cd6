"""When a child that has ended is started again; pure."""

from __future__ import annotations

from dataclasses import dataclass

from tireless.config import SupervisorConfig

LONGEST_DELAY_SECONDS = 60.0


@dataclass(slots=True)
class Restarts:
    """The record of one place (the poller's, or one runner's). `quick` counts its quick deaths in a row: a
    child that lived for `healthy_seconds` begins the count again."""

    quick: int = 0

    def ended(self, lived: float, clean: bool, policy: SupervisorConfig) -> float:
        """The seconds until the next start, before jitter, of a child that lived for `lived` seconds.

        `clean`: it was ready, and left with 0 by itself. It is replaced at once, unless it does so at such a
        rate that it is a crash loop by another name.
        """
        if lived >= policy.healthy_seconds:
            self.quick = 0
            return 0.0 if clean else policy.restart_delay_seconds
        if clean and lived >= policy.restart_delay_seconds:
            return 0.0
        self.quick += 1
        delay = policy.restart_delay_seconds * 2.0 ** min(self.quick - 1, 20)
        return min(delay, max(LONGEST_DELAY_SECONDS, policy.restart_delay_seconds))

    def tripped(self, policy: SupervisorConfig) -> bool:
        return self.quick >= policy.crash_loop_limit
