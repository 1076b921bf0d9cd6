-- breaking: no
-- A job that ended while it was being moved to another slot, after its lane's cap was lowered, left that slot taken for
-- ever. It does no longer; what was lost that way is free again.
update lane_slot s
   set job_id = null
 where s.job_id is not null
   and not exists (select from job j where j.id = s.job_id and j.claimed_lane = s.lane and j.slot = s.slot);
