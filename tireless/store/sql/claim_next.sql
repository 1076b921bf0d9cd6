-- One statement: choose, lock, give lease, slot and fence, return. One row in any case: without a job in it, its
-- `seen` says whether to look again by claim_past.sql: jobs were there that could not be had, or may be below a floor.
-- `unsettled` says that a lane was left out whose jobs hold the wrong slots for its cap.
--
-- `near` looks without locking: of each asked lane that may start something the first few of the queue, from the
-- lane's floor on. That is one index probe a lane.
-- include claim_ready
, near as materialized (
    select head.*, ready.newest, ready.only_slot
      from ready
      cross join lateral (
          select j.ctid as tid, j.lane, j.priority, j.run_at, j.number
            from job j
           where j.lane = ready.lane and j.state = 'pending' and j.run_at <= tireless_now()
             and (j.priority, j.run_at, j.number) >= (ready.priority, ready.run_at, ready.number)
           order by j.priority, j.run_at, j.number
           limit 8
      ) head
     order by head.priority, head.run_at, head.number
)
-- include claim_choice
