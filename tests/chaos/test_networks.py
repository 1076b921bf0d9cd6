"""Hosts with a network each, a Postgres and a forge behind a bridge: what a link does that goes away without a word."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.chaos.conftest import Make
from tests.support import postgres
from tests.support.chaos import HELD, HighWater, World, alive, at_gate, finished, open_gates
from tests.support.networks import ADDRESS, Cable, Network, NotAllowed
from tests.support.rig import SCRIPTED_AGENT, Supervisor
from tireless.entities import AgentKind, EventKind, Job, JobState
from tireless.process import parse_worker_id
from tireless.store.connection import connect

A, B = "host-a", "host-b"
OTHER_LANE = f'cap = 1\nrunners = 1\ncommand = ["{sys.executable}", "{SCRIPTED_AGENT}"]'
WAITING_RUNNER = (
    "select 1 from pg_stat_activity where datname = current_database()"
    " and application_name like 'tireless%runner%' and state = 'idle' and query like '%lane_slot%'"
)
# Work goes on for two seconds without a renewal, and the lease for two more.
SHORT: dict[str, dict[str, object]] = {
    "lease": {"seconds": 4.0, "renew_seconds": 0.5, "margin_seconds": 2.0, "host_gone_seconds": 1.0},
    "database": {"connect_timeout_seconds": 2},
}
# Work goes on for ten; an answer is waited for one and a half.
LONG: dict[str, dict[str, object]] = {
    "lease": {"seconds": 12.0, "renew_seconds": 0.5, "margin_seconds": 2.0},
    "database": {"connect_timeout_seconds": 2},
}


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    try:
        made = Network()
        made.cable()  # whether that can be had is to be known before the first test
    except NotAllowed as e:
        pytest.skip(f"hosts cannot have a network each: {e}")
    with made:
        yield made


@pytest.fixture(scope="module")
def server(network: Network) -> Iterator[postgres.Server]:
    """Listens in the middle; the tests themselves use its unix socket."""
    with ExitStack() as stack:
        url = network.middle.run(lambda: stack.enter_context(postgres.embedded(address=ADDRESS)))
        found = postgres.Server(url)
        found.make_template()
        yield found


@pytest.fixture
def database_url(server: postgres.Server) -> Iterator[str]:
    """Of the worlds of this module."""
    with server.database() as url:
        yield url


class Apart:
    """Hosts A and B at the ends of their cables."""

    def __init__(self, network: Network, make_world: Make, url: str) -> None:
        self._network = network
        self._make_world = make_world
        self.url = f"postgresql://postgres@{ADDRESS}/{url.rpartition('?')[0].rpartition('/')[2]}"
        self.cables: dict[str, Cable] = {host: network.cable() for host in (A, B)}
        self.world: World

    def make(self, **options: Any) -> World:
        """A world for them, with its forge in the middle; its configuration is A's."""
        direct = {"no_proxy": "*"}  # the way out is another network's
        self.world = self._network.middle.run(lambda: self._make_world(address=ADDRESS, env=direct, **options))
        return self.world

    def start(self, host: str) -> Supervisor:
        env = {"TIRELESS_DATABASE_URL": self.url}
        return self.cables[host].host.run(lambda: self.world.start(host, env=env))

    def asked_by(self, host: str, since: int = 0) -> list[str]:
        """What the host has asked of the forge, git's requests included."""
        calls = [r.call for r in self.world.forge.requests[since:]]
        return [str(call) for call in calls if call.client == self.cables[host].address]


@pytest.fixture
def apart(network: Network, make_world: Make, database_url: str) -> Apart:
    return Apart(network, make_world, database_url)


def host_of(job: Job) -> str | None:
    worker = parse_worker_id(job.claimed_by or "")
    return worker.host if worker is not None else None


def test_the_cap_is_exact_over_two_networks(apart: Apart, database_url: str) -> None:
    """Two hosts of different kinds: the cap is the row's, whatever the second host's file says, and takes both to fill;
    a lane that only one of them has is worked there."""
    world = apart.make(runners=2, cap=3)
    world.reconfigure(B, runners=2, cap=9, opencode=OTHER_LANE, tables={})
    world.poll_every(1)
    apart.start(A)
    apart.start(B)
    with HighWater(database_url).watching() as water:
        numbers = [world.ask(*HELD, title=f"Job {i}") for i in range(4)]
        held = world.until(lambda: at_gate(world, 3), 30, "three agents at their gates")
        assert {host_of(job) for job in held} == {A, B}
        world.until(lambda: open_gates(world) == 4 and finished(world) == 4, 60, "all are through")
    assert water.most == 3
    for number in numbers:
        assert world.assert_delivered_once(number).claim_seq == 1
    other = world.forge.open_issue("Other lane", labels=["tireless", "tireless/agent:oc"])
    world.poke()
    runs = world.runs(world.wait_job(other, JobState.DELIVERED))
    assert [(run.agent, run.host) for run in runs] == [(AgentKind.OPENCODE, B)]
    for host in (A, B):
        assert any("git-receive-pack" in call for call in apart.asked_by(host)), "it delivers by itself"
    world.assert_nothing_held()


def test_the_polling_is_shared_over_two_networks(apart: Apart) -> None:
    """Both poll, and together no more often than one alone would."""
    world = apart.make(runners=0)
    world.reconfigure(B, runners=0, tables={"poller": {"wake_seconds": 2.0, "threads": 2}})
    names = ["acme/one", "acme/two", "acme/three", "acme/four"]
    for name in names:
        world.forge.add_repo(name, {"README.md": "hello\n"})
        world.poll_every(1, name)
    apart.start(A)
    apart.start(B)

    def lists(host: str, since: int) -> int:
        return sum(1 for call in apart.asked_by(host, since) if "/issues?" in call)

    world.until(lambda: lists(A, 0) and lists(B, 0), 30, "both have polled")
    since, began = len(world.forge.requests), time.monotonic()
    world.until(lambda: lists(A, since) + lists(B, since) >= 5 * len(names), 30, "five polls each")
    assert time.monotonic() - began > 3.0, "an interval lies between two polls, whoever they are by"


def test_a_host_that_is_cut_off_ends_its_agent_before_its_lease_ends(apart: Apart) -> None:
    """The other takes the job over after the lease and delivers it, once. The first, when it is back, has nothing to
    say but that the claim was lost, and works on."""
    world = apart.make(cap=2, tables=SHORT)
    world.reconfigure(B, cap=2, tables=SHORT)
    world.poll_every(1)
    supervisor = apart.start(A)
    number = world.ask({"do": "ignore_term"}, *HELD)
    job = world.agent_is_here(number, A)
    agents = world.agents(job)
    apart.start(B)
    assert agents
    lost = world.job(number)
    apart.cables[A].pull()
    asked = len(world.forge.requests)

    world.until(lambda: not any(alive(pid) for pid in agents), what="the agent is dead")
    row = "select claimed_by = %s and claim_expires_at > now(), claim_expires_at from job where id = %s"
    in_time, lease_end = world.row(row, lost.claimed_by, job.id)
    assert in_time, world.report()
    world.wait_job(number, JobState.PENDING)
    assert world.events(job)[-1].kind == EventKind.LEASE_EXPIRED
    assert world.events(job)[-1].at > lease_end, "not before the lease was over"
    assert host_of(world.wait_claimed_anew(job, lost.claim_seq)) == B
    world.agent_is_here(number, B)
    world.let_agent_go(job, B)
    done = world.assert_delivered_once(number)
    assert len(world.starts(job)) == 2
    assert apart.asked_by(A, asked) == []

    apart.cables[A].mend()
    world.until(lambda: EventKind.CLAIM_LOST in world.kinds(job), 30, "the first host has seen it")
    assert world.job(number) == done, "it has touched nothing"
    assert [call for call in apart.asked_by(A, asked) if not call.startswith("GET ")] == []
    last = world.events(job)[-1]
    assert (last.kind, last.actor) == (EventKind.CLAIM_LOST, lost.claimed_by)
    assert supervisor.said().count("claim lost") == 1

    more = [world.ask(*HELD), world.ask(*HELD)]
    held = world.until(lambda: at_gate(world, 2), 30, "each host has one")
    assert {host_of(job) for job in held} == {A, B}
    world.until(lambda: open_gates(world) and finished(world) == 3, 30, "all are through")
    for number in more:
        world.assert_delivered_once(number)
    world.assert_nothing_held()


def test_a_link_that_is_silent_for_a_while_costs_nothing(apart: Apart) -> None:
    """For less than the claim is trusted: the agent lives on, nobody else gets the job, and it is said once."""
    world = apart.make(tables=LONG)
    world.reconfigure(B, tables=LONG)
    world.poll_every(1)
    supervisor = apart.start(A)
    number = world.ask(*HELD)
    job = world.agent_is_here(number, A)
    agents = world.agents(job)
    apart.start(B)
    since = len(supervisor.said())
    apart.cables[A].mute()
    muted_at = world.row("select now()")[0]
    world.until(lambda: len(loud(supervisor, since)) == 2, 20, "poller and runner have noticed")
    world.until(lambda: world.row("select now() > %s + interval '4 s'", muted_at)[0], what="some tries later")
    spoken = loud(supervisor, since)
    apart.cables[A].mend()
    world.until(
        lambda: world.row("select claim_expires_at > now() + interval '10 s' from job where id = %s", job.id)[
            0
        ],
        what="the claim is renewed",
    )
    assert agents
    assert all(alive(pid) for pid in agents), world.report()
    world.let_agent_go(job, A)
    done = world.assert_delivered_once(number)
    assert (done.claim_seq, len(world.starts(job))) == (1, 1)
    assert spoken == dict.fromkeys(spoken, 1), supervisor.said()[since:]
    world.assert_nothing_held()


def loud(supervisor: Supervisor, since: int) -> dict[str, int]:
    """How often each process has complained since that offset of the log."""
    return dict(
        Counter(re.findall(r"^(?:WARNING|ERROR|CRITICAL) .*?\[(\d+)\] ", supervisor.said()[since:], re.M))
    )


def test_a_listener_whose_other_end_has_forgotten_it_is_mended(network: Network, apart: Apart) -> None:
    """The server ended the session while its host could not be told. An idle runner, which asks nothing of its own
    for minutes, notices within fifteen seconds and looks at the queue at once."""
    world = apart.make(tables={"runner": {"wake_seconds": 60.0}})
    world.poll_every(1)
    supervisor = apart.start(A)
    cable = apart.cables[A]
    world.until(lambda: world.row(WAITING_RUNNER), what="the runner has looked at the queue, and listens")
    since = len(supervisor.said())
    cable.mute()
    try:
        network.forget(cable.address, 5432)
    except NotAllowed as e:
        pytest.skip(f"connections cannot be forgotten: {e}")
    cable.mend()
    job = world.wait_job(world.ask(), JobState.DELIVERED)
    at = {event.kind: event.at for event in reversed(world.events(job))}
    assert (at[EventKind.CLAIMED] - at[EventKind.ENQUEUED]).total_seconds() < 15.0
    lost = [line for line in supervisor.said()[since:].splitlines() if "listening connection lost" in line]
    assert sum("runner" in line for line in lost) == 1, lost


def test_the_server_lets_go_of_a_host_that_has_vanished(apart: Apart) -> None:
    """Its connections would otherwise count for two hours: the server's side asks too whether the other is there."""

    def shown() -> list[Any]:
        with connect(apart.url) as conn:
            names = (
                "tcp_keepalives_idle",
                "tcp_keepalives_interval",
                "tcp_keepalives_count",
                "tcp_user_timeout",
            )
            return [conn.execute(f"select current_setting('{name}')".encode()).fetchone() for name in names]

    assert apart.cables[A].host.run(shown) == [("10",), ("5",), ("3",), ("20000",)]
