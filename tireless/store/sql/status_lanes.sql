-- A lane as the claim sees it (claim_next.sql). The age of the oldest pending job is that of the first in the queue,
-- by one probe of job_claimable_idx a priority, the count of slots in hand from the slots themselves.
select l.lane, l.cap, l.paused, l.pause_reason, l.hold_reason, l.held_until,
       l.hold_reason is not null and (l.held_until is null or l.held_until > tireless_now()) as held,
       (select count(*) from lane_slot s where s.lane = l.lane and s.job_id is not null) as used,
       (select min(head.created_at)
          from generate_series(0, 9) as p (priority)
          cross join lateral (
              select j.created_at
                from job j
               where j.lane = l.lane and j.state = 'pending' and j.priority = p.priority
               order by j.run_at, j.number
               limit 1
          ) head) as oldest_pending_at
  from lane l
 order by l.lane
