-- breaking: no
-- The queue: repositories, jobs, lanes with their slots, agent runs, events, forge writes, workers.
--
-- Each check over a vocabulary is named <table>_<column>_known; tests read these lists out of the live
-- database and compare them with the enums of tireless/entities.py.

-- The clock of everything here. `tireless.now` is set by tests only, which must be able to turn it.
create function tireless_now() returns timestamptz
    language sql stable parallel safe
    as $$ select coalesce(nullif(current_setting('tireless.now', true), '')::timestamptz, now()) $$;

-- Quiet hours are wall time, half-open, in a zone: the moment is converted to local time, never the window to
-- UTC, so that a window keeps its hours on the wall when the clocks change. Equal ends are off.
create function tireless_is_quiet(quiet_from time, quiet_until time, zone text, at timestamptz) returns boolean
    language sql stable parallel safe
    as $$
        select case
            when quiet_from is null or quiet_until is null or quiet_from = quiet_until then false
            when quiet_from < quiet_until
                then (at at time zone zone)::time >= quiet_from and (at at time zone zone)::time < quiet_until
            else (at at time zone zone)::time >= quiet_from or (at at time zone zone)::time < quiet_until
        end
    $$;

create table tracked_repo (
    id                 bigint generated always as identity primary key,
    forge              text not null
        constraint tracked_repo_forge_known check (forge in ('github', 'gitea', 'forgejo')),
    host               text not null,
    owner              text not null,
    repo               text not null,
    clone_url          text not null,
    default_branch     text not null,
    interval_seconds   integer not null default 60 check (interval_seconds > 0),
    quiet_from         time,
    quiet_until        time,
    -- The check raises on a zone that the server does not know: better here than in every claim.
    quiet_zone         text not null default 'UTC'
        check ((timestamptz '2000-01-01 00:00+00' at time zone quiet_zone) is not null),
    enabled            boolean not null default true,
    max_running        integer check (max_running > 0),
    verify_command     text,
    last_etag          text,
    etag_key           text,
    body_hash          text,
    last_polled_at     timestamptz,
    last_full_sweep_at timestamptz,
    next_poll_at       timestamptz not null default now(),
    poll_result        text
        constraint tracked_repo_poll_result_known check (poll_result in
            ('changed', 'unchanged', 'limited', 'unreachable', 'missing', 'forbidden', 'unauthorized', 'broken')),
    poll_detail        text,
    poll_failures      integer not null default 0,
    created_at         timestamptz not null default now()
);

create unique index tracked_repo_identity_key on tracked_repo (forge, lower(host), lower(owner), lower(repo));
create index tracked_repo_due_idx on tracked_repo (next_poll_at) where enabled;

create table lane (
    lane         text primary key
        constraint lane_lane_known check (lane in ('claude_code', 'opencode')),
    cap          integer not null check (cap between 0 and 1000),
    paused       boolean not null default false,
    pause_reason text,
    held_until   timestamptz,
    hold_reason  text,
    updated_at   timestamptz not null default now(),
    constraint hold_has_reason check (held_until is null or hold_reason is not null)
);

-- A slot is the right to run one job of a lane, on whatever host. Counting running rows cannot be exact under
-- SKIP LOCKED, since two claimers count in the same snapshot; a row that only one of them can lock is. `open` is
-- slot <= cap: a cap change waits for a claim of the very slot that it closes, and for nothing else.
--
-- All rows of a lane are made at once, so that the planner never sees a table small enough to scan. The slot that
-- became free last is taken first: where an old snapshot keeps dead versions from being cleaned away, they lie
-- behind the live one and no claim reads them.
create table lane_slot (
    lane       text not null references lane (lane),
    slot       integer not null check (slot between 1 and 1000),
    open       boolean not null,
    job_id     uuid,
    free_since timestamptz not null default now(),
    -- (lane, slot) is the name of a row, given once, with the lane's. A key of these alone would read every dead
    -- version of the slot at each change of it.
    primary key (lane, slot, free_since)
);

create index lane_slot_free_idx on lane_slot (lane, free_since desc) where open and job_id is null;
create unique index lane_slot_job_key on lane_slot (job_id) where job_id is not null;
-- Empty but for a while after a cap was lowered below what was running.
create index lane_slot_over_cap_idx on lane_slot (lane) where not open and job_id is not null;

-- Where the look for a lane's next job begins: below it nothing was pending and due, so that claims do not read past
-- what was claimed before, again and again, while an old snapshot keeps it. Who puts a job back or into another
-- lane takes the floor away. It is a hint all the same: a claim that finds nothing looks without it, and it is
-- found anew every minute, for a job whose enqueue took long to commit or an urgent one that has become due.
create table lane_floor (
    lane     text primary key references lane (lane),
    priority smallint,
    run_at   timestamptz, -- null: no floor
    number   bigint,
    full_at  timestamptz  -- when it was last found by a look from the bottom
);

create table job (
    id                  uuid primary key default gen_random_uuid(),
    repo_id             bigint references tracked_repo (id) on delete set null,
    forge               text not null
        constraint job_forge_known check (forge in ('github', 'gitea', 'forgejo')),
    host                text not null,
    owner               text not null,
    repo                text not null,
    number              bigint not null check (number > 0),
    title               text not null default '',
    kind                text not null
        constraint job_kind_known check (kind in ('implement', 'plan', 'discover')),
    state               text not null default 'pending'
        constraint job_state_known check (state in
            ('pending', 'claimed', 'running', 'delivered', 'blocked', 'failed', 'abandoned')),
    lane                text not null
        constraint job_lane_known check (lane in ('claude_code', 'opencode')),
    priority            smallint not null default 5 check (priority between 0 and 9),
    run_at              timestamptz not null default now(),
    attempts            integer not null default 0 check (attempts >= 0),
    max_attempts        integer not null default 3 check (max_attempts >= 1),
    claim_seq           bigint not null default 0,
    claimed_by          text,
    claim_expires_at    timestamptz,
    claimed_lane        text
        constraint job_claimed_lane_known check (claimed_lane in ('claude_code', 'opencode')),
    slot                integer,
    repo_slot           integer,
    phase               text not null default 'prepare'
        constraint job_phase_known check (phase in ('prepare', 'agent', 'verify', 'push', 'announce', 'done')),
    parent_job_id       uuid references job (id) on delete set null,
    cancel_requested_at timestamptz,
    cancel_reason       text,
    branch              text,
    work_host           text, -- whose disk holds the workspace; set when the agent is about to start
    base_commit         text,
    head_commit         text,
    pull_request_number bigint,
    pull_request_url    text,
    result              jsonb,
    last_error          text,
    created_at          timestamptz not null default now(),
    updated_at          timestamptz not null default now(),
    finished_at         timestamptz,

    constraint slot_is_a_number_of_the_lane check (slot between 1 and 1000),
    -- Returning to pending must let go of the claim, or the sweep would not be safe: the database refuses the
    -- half-done version instead of the code remembering to.
    constraint pending_holds_no_claim check (state <> 'pending' or
        (claimed_by is null and claim_expires_at is null and claimed_lane is null
         and slot is null and repo_slot is null)),
    constraint claim_has_lease_and_slot check (state not in ('claimed', 'running') or
        (claimed_by is not null and claim_expires_at is not null and claimed_lane is not null
         and slot is not null)),
    constraint terminal_holds_no_claim check (state in ('pending', 'claimed', 'running') or
        (claimed_by is null and claim_expires_at is null and claimed_lane is null
         and slot is null and repo_slot is null)),
    constraint terminal_has_end check
        ((finished_at is not null) = (state in ('delivered', 'blocked', 'failed', 'abandoned')))
) with (fillfactor = 70);

-- One live job an issue. Enqueue is `on conflict do nothing` against it, so the rule has this one home.
create unique index job_live_issue_key
    on job (lower(owner), lower(repo), number, lower(host), forge)
    where state in ('pending', 'claimed', 'running');

-- The queue, in the order of the claim: priority, then the time since when a job may run, which for a fresh one is
-- the time of its enqueue. A job in backoff sorts behind all that may run, so that no claim ever meets it.
create index job_claimable_idx on job (lane, priority, run_at, number) where state = 'pending';
-- The same by repository (0: none any more), for when the head of the queue is full of repositories that may
-- start nothing now.
create index job_repo_pending_idx on job (lane, coalesce(repo_id, 0), priority, run_at, number)
    where state = 'pending';

-- Nothing that a heartbeat rewrites is in any index, so renewals stay HOT. A unique index over lane and slot would
-- read every old holder of the slot at each claim while an old snapshot keeps them: lane_slot_job_key guards it.
create index job_held_idx on job (claimed_by) where state in ('claimed', 'running');
create unique index job_repo_slot_key on job (repo_id, repo_slot) where repo_slot is not null;
create index job_history_idx
    on job (lower(owner), lower(repo), number, lower(host), forge) where finished_at is not null;
create index job_finished_idx on job (finished_at) where finished_at is not null;
create index job_parent_idx on job (parent_job_id) where parent_job_id is not null;

create table job_event (
    id     bigint generated always as identity,
    job_id uuid not null references job (id) on delete cascade,
    at     timestamptz not null default now(),
    kind   text not null,
    actor  text not null,
    detail jsonb not null default '{}',
    primary key (job_id, id)
);

create table agent_run (
    id            uuid primary key,
    job_id        uuid not null references job (id) on delete cascade,
    claim_seq     bigint not null,
    agent         text not null
        constraint agent_run_agent_known check (agent in ('claude_code', 'opencode')),
    host          text not null,
    worker        text not null,
    session_id    text,
    resumed       boolean not null default false,
    started_at    timestamptz not null default now(),
    ended_at      timestamptz,
    outcome       text
        constraint agent_run_outcome_known check (outcome in
            ('completed', 'blocked', 'rate_limited', 'overloaded', 'not_authenticated', 'out_of_credit',
             'turn_limit', 'budget_limit', 'refused', 'crashed', 'stalled', 'timed_out', 'stopped')),
    detail        text,
    exit_code     integer,
    cost_usd      double precision,
    input_tokens  bigint,
    output_tokens bigint,
    turns         integer,
    model         text
) with (fillfactor = 80);

create index agent_run_job_idx on agent_run (job_id, started_at);
create index agent_run_day_idx on agent_run (started_at);

-- The outbox to the forges: filled in the transaction that wants the write, drained in order per issue.
create table forge_write (
    id           bigint generated always as identity primary key,
    job_id       uuid references job (id) on delete set null,
    forge        text not null
        constraint forge_write_forge_known check (forge in ('github', 'gitea', 'forgejo')),
    host         text not null,
    owner        text not null,
    repo         text not null,
    number       bigint not null,
    op           text not null
        constraint forge_write_op_known check (op in
            ('pull_request', 'status_comment', 'comment', 'state_label', 'add_label', 'remove_label',
             'child_issue')),
    payload      jsonb not null default '{}',
    state        text not null default 'waiting'
        constraint forge_write_state_known check (state in ('waiting', 'done', 'refused', 'void')),
    attempts     integer not null default 0,
    next_try_at  timestamptz not null default now(),
    locked_by    text,
    locked_until timestamptz,
    last_error   text,
    result       jsonb,
    created_at   timestamptz not null default now(),
    done_at      timestamptz
);

create index forge_write_waiting_idx
    on forge_write (forge, lower(host), lower(owner), lower(repo), number, id)
    where state = 'waiting';
create index forge_write_refused_idx
    on forge_write (forge, lower(host), lower(owner), lower(repo), number)
    where state = 'refused';
create index forge_write_job_idx on forge_write (job_id, id);
create index forge_write_done_idx on forge_write (done_at) where done_at is not null;

-- The issues that a plan brought about, so that their jobs know their parent.
create table child_issue (
    parent_job_id uuid not null references job (id) on delete cascade,
    key           text not null,
    forge         text not null
        constraint child_issue_forge_known check (forge in ('github', 'gitea', 'forgejo')),
    host          text not null,
    owner         text not null,
    repo          text not null,
    number        bigint not null,
    url           text not null,
    created_at    timestamptz not null default now(),
    primary key (parent_job_id, key)
);

create unique index child_issue_issue_key on child_issue (forge, lower(host), lower(owner), lower(repo), number);

create table worker (
    id         text primary key,
    host       text not null,
    role       text not null
        constraint worker_role_known check (role in ('supervisor', 'poller', 'runner', 'ctl')),
    lane       text
        constraint worker_lane_known check (lane in ('claude_code', 'opencode')),
    pid        integer not null,
    version    text not null,
    started_at timestamptz not null default now(),
    seen_at    timestamptz not null default now()
) with (fillfactor = 50);

create index worker_host_idx on worker (host);
