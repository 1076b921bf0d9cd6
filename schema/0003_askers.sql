-- breaking: no
-- Who may start work and on what text; limits of forges that every process obeys; webhook deliveries.

-- What an issue said when the poller queued its job: who sets the label answers for that, not for what somebody wrote
-- into it later. A job of an older program has none.
create table job_text (
    job_id  uuid primary key references job (id) on delete cascade,
    title   text not null check (length(title) <= 500),
    body    text not null check (length(body) <= 100000),
    author  text not null,
    seen_at timestamptz not null
);

-- Labels that somebody set who may not start work. While the row stands the issue makes no new job; the poller takes it
-- away once the label was seen off, or the issue's history tells of a later setting.
create table refused_label (
    repo_id     bigint not null references tracked_repo (id) on delete cascade,
    number      bigint not null,
    labelling   bigint,      -- the forge's id of the setting that was refused; null: not known
    refused_at  timestamptz not null,
    seen_update timestamptz, -- the issue's time of change when its history was last read
    primary key (repo_id, number)
);

-- Until when a forge wants to be left alone by the holder of a token, of which this is a fingerprint.
create table forge_limit (
    host          text not null, -- that is asked, with its port
    token         text not null,
    limited_until timestamptz not null,
    primary key (host, token)
);

-- The poller takes what is due host by host, so that one that is slow does not stand before the others.
create index tracked_repo_host_due_idx on tracked_repo (forge, lower(host), next_poll_at) where enabled;
