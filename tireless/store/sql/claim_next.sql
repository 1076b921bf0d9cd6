-- One statement: choose, lock, give lease, slot and fence, return. One row in any case: without a job in it, its
-- `seen` says whether jobs were there that could not be had.
--
-- `near` looks without locking. Of each asked lane that may start something it takes the first few of the queue:
-- of the fresh ones from the lane's floor on, and of those that come back. That is two index probes a lane. Where
-- none of these can be had (`past`), it takes the first few of each repository that may start something now,
-- so that a queue whose head belongs to sleeping repositories costs as many probes as there are repositories.
-- `choice` goes through them in order and locks the first that yields a job and a slot; LIMIT 1 ends it there, so no
-- lock is held on a lane that is not taken and a rival finds the other job. The locked look asks everything
-- again: what changed since the snapshot is seen when the row is locked.
with ready as materialized (
    select l.lane
      from unnest(%(lanes)s::text[]) as asked (lane)
      join lane l on l.lane = asked.lane
     where not l.paused
       and (l.hold_reason is null or l.held_until <= tireless_now())
       and exists (select from lane_slot s where s.lane = l.lane and s.open and s.job_id is null)
       -- What was running when the cap was lowered counts until it has ended.
       and not exists (select from lane_slot s where s.lane = l.lane and not s.open and s.job_id is not null)
), near as materialized (
    select head.*
      from ready
      left join lane_floor f
        on f.lane = ready.lane and f.run_at is not null
       and f.full_at between tireless_now() - interval '2 minutes' and tireless_now()
      cross join lateral (
          (select j.ctid as tid, j.lane, j.priority, j.run_at, j.number
             from job j
            where j.lane = ready.lane and j.state = 'pending' and j.claim_seq = 0 and j.run_at <= tireless_now()
              and (j.priority, j.run_at, j.number)
                  >= (coalesce(f.priority, 0::smallint), coalesce(f.run_at, '-infinity'), coalesce(f.number, 0))
            order by j.priority, j.run_at, j.number
            limit 8)
          union all
          (select j.ctid, j.lane, j.priority, j.run_at, j.number
             from job j
            where j.lane = ready.lane and j.state = 'pending' and j.claim_seq > 0 and j.run_at <= tireless_now()
            order by j.priority, j.run_at, j.number
            limit 8)
      ) head
     where not %(past)s
    union all
    select head.*
      from ready
      cross join lateral (
          select t.id
            from tracked_repo t
           where t.enabled
             and not tireless_is_quiet(t.quiet_from, t.quiet_until, t.quiet_zone, tireless_now())
          union all
          select 0
      ) r
      cross join lateral (
          select j.ctid, j.lane, j.priority, j.run_at, j.number
            from job j
           where j.lane = ready.lane and coalesce(j.repo_id, 0) = r.id and j.state = 'pending'
             and j.run_at <= tireless_now()
             and (j.work_host is null or j.work_host = %(host)s
                  or j.updated_at < tireless_now() - interval '1 hour')
             and j.kind = any(%(kinds)s::text[]) and j.forge = any(%(forges)s::text[])
             and j.phase = any(%(phases)s::text[])
           order by j.priority, j.run_at, j.number
           limit 32
      ) head
     where %(past)s
     order by priority, run_at, number
), choice as materialized (
    select picked.id, picked.repo_slot, near.lane, free.slot
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
                  or j.updated_at < tireless_now() - interval '1 hour')
             -- What a newer program has put into the row is left for one.
             and j.kind = any(%(kinds)s::text[]) and j.forge = any(%(forges)s::text[])
             and j.phase = any(%(phases)s::text[])
             and (t.id is null
                  or (t.enabled
                      and not tireless_is_quiet(t.quiet_from, t.quiet_until, t.quiet_zone, tireless_now())
                      and (t.max_running is null or room.repo_slot is not null)))
             for no key update of j skip locked
      ) picked
      cross join lateral (
          select s.slot
            from lane_slot s
           where s.lane = near.lane and s.open and s.job_id is null
           order by s.free_since desc
           limit 1
             for no key update skip locked
      ) free
     limit 1
), taken as (
    update lane_slot s
       set job_id = choice.id
      from choice
     where s.lane = choice.lane and s.slot = choice.slot
), claimed as (
    update job
       set state = 'claimed',
           claimed_by = %(worker)s,
           claim_expires_at = tireless_now() + %(lease)s::interval,
           claimed_lane = choice.lane,
           slot = choice.slot,
           repo_slot = choice.repo_slot,
           claim_seq = claim_seq + 1,
           attempts = attempts + 1,
           updated_at = tireless_now()
      from choice
     where job.id = choice.id
    returning job.*
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select id, tireless_now(), 'claimed', claimed_by,
           jsonb_build_object('seq', claim_seq, 'slot', slot, 'attempt', attempts)
      from claimed
)
select claimed.*, seen.n as seen
  from (select count(*) as n from near) as seen
  left join claimed on true
