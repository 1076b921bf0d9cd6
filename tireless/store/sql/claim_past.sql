-- As claim_next.sql, for when the head of the queue is there and cannot be had: the first few of each repository that
-- may start something now, so that a queue whose head belongs to sleeping repositories costs as many probes as
-- there are repositories. It goes by no floor.
-- include claim_ready
, near as materialized (
    select head.*, ready.newest, ready.only_slot
      from ready
      cross join lateral (
          select t.id
            from tracked_repo t
           where t.enabled
             and (t.held_until is null or t.held_until <= tireless_now())
             and not tireless_is_quiet(t.quiet_from, t.quiet_until, t.quiet_zone, tireless_now())
             and (t.max_running is null
                  or exists (select from generate_series(1, t.max_running) as n
                              where not exists (select from job x where x.repo_id = t.id and x.repo_slot = n)))
          union all
          select 0
      ) r
      cross join lateral (
          select j.ctid as tid, j.lane, j.priority, j.run_at, j.number
            from job j
           where j.lane = ready.lane and coalesce(j.repo_id, 0) = r.id and j.state = 'pending'
             and j.run_at <= tireless_now()
             and (j.work_host is null or j.work_host = %(host)s
                  or j.updated_at < tireless_now() - %(host_gone)s::interval)
             and j.kind = any(%(kinds)s::text[]) and j.forge = any(%(forges)s::text[])
             and j.phase = any(%(phases)s::text[])
           order by j.priority, j.run_at, j.number
           limit 8
      ) head
     order by head.priority, head.run_at, head.number
)
-- include claim_choice
