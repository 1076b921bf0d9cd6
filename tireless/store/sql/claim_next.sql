-- One statement: choose, lock, give lease, slot and fence, return.
--
-- `ready` looks without locking: for each asked lane that may start something, one probe of job_claimable_idx.
-- `choice` then goes through these lanes, oldest head first, and locks in the first that yields a job and a slot;
-- LIMIT 1 ends it there, so no lock is held on a lane that is not taken and a rival finds the other job.
-- The locked look asks everything again: what changed since the snapshot is seen when the row is locked.
with ready as materialized (
    select l.lane, head.priority, head.created_at
      from unnest(%(lanes)s::text[]) as asked (lane)
      join lane l on l.lane = asked.lane
      cross join lateral (
          select j.priority, j.created_at
            from job j
           where j.lane = l.lane and j.state = 'pending'
           order by j.priority, j.created_at, j.number
           limit 1
      ) head
     where not l.paused
       and (l.hold_reason is null or l.held_until <= tireless_now())
       and exists (select from lane_slot s where s.lane = l.lane and s.open and s.job_id is null)
     order by head.priority, head.created_at
), choice as materialized (
    select picked.id, picked.repo_slot, ready.lane, free.slot
      from ready
      cross join lateral (
          select j.id, room.repo_slot
            from job j
            left join tracked_repo t on t.id = j.repo_id
            cross join lateral (
                select case when t.max_running is not null then (
                    select min(n)
                      from generate_series(1, t.max_running) as n
                     where not exists (select from job x
                                        where x.repo_id = t.id and x.repo_slot = n
                                          and x.state in ('claimed', 'running')))
                end as repo_slot
            ) room
           where j.lane = ready.lane and j.state = 'pending' and j.run_at <= tireless_now()
             -- Agent time that was paid for lies on one host's disk: others wait before they begin anew.
             and (j.work_host is null or j.work_host = %(host)s
                  or j.updated_at < tireless_now() - interval '1 hour')
             and (t.id is null
                  or (t.enabled
                      and not tireless_is_quiet(t.quiet_from, t.quiet_until, t.quiet_zone, tireless_now())
                      and (t.max_running is null or room.repo_slot is not null)))
           order by j.priority, j.created_at, j.number
           limit 1
             for update of j skip locked
      ) picked
      cross join lateral (
          select s.slot
            from lane_slot s
           where s.lane = ready.lane and s.open and s.job_id is null
           order by s.slot
           limit 1
             for update skip locked
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
select * from claimed
