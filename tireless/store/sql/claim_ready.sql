-- Part of the claims: the lanes, of those asked for, that may start something, each with its floor and with when
-- the last of its free slots became free.
with ready as materialized (
    select l.lane, coalesce(f.priority, 0::smallint) as priority, coalesce(f.run_at, '-infinity') as run_at,
           coalesce(f.number, 0) as number, free.newest,
           -- While it is probing, claims contend for one slot, so that two at once cannot both be the first.
           case when l.probing then (select min(s.slot) from lane_slot s where s.lane = l.lane and s.open)
           end as only_slot
      from unnest(%(lanes)s::text[]) as asked (lane)
      join lane l on l.lane = asked.lane
      left join lane_floor f
        on f.lane = l.lane and f.run_at is not null
       and f.full_at between tireless_now() - interval '2 minutes' and tireless_now()
      cross join lateral (
          select s.free_since as newest
            from lane_slot s
           where s.lane = l.lane and s.open and s.job_id is null
           order by s.free_since desc
           limit 1
      ) free
     where not l.paused
       and (l.hold_reason is null or l.held_until <= tireless_now())
       -- After a usage limit one job goes first.
       and (not l.probing
            or not exists (select from lane_slot s where s.lane = l.lane and s.job_id is not null))
       -- What was running when the cap was lowered counts until it has ended.
       and not exists (select from lane_slot s where s.lane = l.lane and not s.open and s.job_id is not null)
)
