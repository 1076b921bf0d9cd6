-- Part of the claims: from jobs that are `near` to one that is had. `choice` goes through them in order and locks the
-- first that yields a job and a slot; LIMIT 1 ends it there, so no lock is held on a lane that is not taken and a
-- rival finds the other job. The locked look asks everything again: what changed since the snapshot is seen when
-- the row is locked. A slot that was taken and freed again in between is another turn of it, and not taken.
, choice as materialized (
    select picked.id, picked.repo_slot, near.lane, free.slot, free.free_since
      from near
      cross join lateral (
          select j.id, room.repo_slot
            from job j
            left join tracked_repo t on t.id = j.repo_id
            cross join lateral (
                select case when t.max_running is not null then (
                    select min(n)
                      from generate_series(1, t.max_running) as n
                     where not exists (select from job x where x.repo_id = t.id and x.repo_slot = n))
                end as repo_slot
            ) room
           where j.ctid = near.tid
             and j.lane = near.lane and j.state = 'pending' and j.run_at <= tireless_now()
             -- Agent time that was paid for lies on one host's disk: others wait before they begin anew.
             and (j.work_host is null or j.work_host = %(host)s
                  or j.updated_at < tireless_now() - %(host_gone)s::interval)
             -- What a newer program has put into the row is left for one.
             and j.kind = any(%(kinds)s::text[]) and j.forge = any(%(forges)s::text[])
             and j.phase = any(%(phases)s::text[])
             and (t.id is null
                  or (t.enabled
                      and (t.held_until is null or t.held_until <= tireless_now())
                      and not tireless_is_quiet(t.quiet_from, t.quiet_until, t.quiet_zone, tireless_now())
                      and (t.max_running is null or room.repo_slot is not null)))
             for no key update of j skip locked
      ) picked
      cross join lateral (
          select s.slot, s.free_since
            from lane_slot s
           where s.lane = near.lane and s.open and s.job_id is null and s.free_since <= near.newest
             and (near.only_slot is null or s.slot = near.only_slot)
           order by s.free_since desc
           limit 1
             for no key update skip locked
      ) free
     limit 1
), taken as (
    update lane_slot s
       set job_id = choice.id
      from choice
     where s.lane = choice.lane and s.slot = choice.slot and s.free_since = choice.free_since
    returning s.lane, s.slot, s.job_id
), claimed as (
    update job
       set state = 'claimed',
           claimed_by = %(worker)s,
           claim_expires_at = tireless_now() + %(lease)s::interval,
           claimed_lane = taken.lane,
           slot = taken.slot,
           repo_slot = choice.repo_slot,
           claim_seq = claim_seq + 1,
           attempts = attempts + 1,
           updated_at = tireless_now()
      from choice
      join taken on taken.job_id = choice.id
     where job.id = choice.id
    returning job.*
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select id, tireless_now(), 'claimed', claimed_by,
           jsonb_build_object('seq', claim_seq, 'slot', slot, 'attempt', attempts)
      from claimed
)
select claimed.*, seen.n as seen,
       -- A job from before a lowered cap keeps its lane closed, though it could move: see lanes.settle_slots.
       case when claimed.id is null then exists (
           select from lane_slot high
            where high.lane = any(%(lanes)s::text[]) and not high.open and high.job_id is not null
              and exists (select from lane_slot s where s.lane = high.lane and s.open and s.job_id is null))
       end as unsettled
  from (select (select count(*) from near) + (select count(*) from ready where run_at > '-infinity') as n) as seen
  left join claimed on true
