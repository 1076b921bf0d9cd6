-- breaking: no
-- What may be spent a day, and the probe after a hold. A budget that is reached becomes a hold with a reason and an
-- end, so that claims compare no sums: who ends or starts a run looks at what the day has cost so far.
alter table lane
    add column daily_usd double precision check (daily_usd > 0),
    add column daily_jobs integer check (daily_jobs > 0),
    -- Set with a hold of a usage limit: after its end one job goes first, and only its good end lets the others go.
    add column probing boolean not null default false;

alter table tracked_repo
    add column daily_usd double precision check (daily_usd > 0),
    add column daily_jobs integer check (daily_jobs > 0),
    add column held_until timestamptz,
    add column hold_reason text,
    add constraint hold_has_reason check ((held_until is null) = (hold_reason is null));
