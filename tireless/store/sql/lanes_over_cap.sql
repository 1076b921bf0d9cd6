-- Lanes where what was running when the cap was lowered could move into a slot that has become free.
select distinct high.lane
  from lane_slot high
 where not high.open and high.job_id is not null
   and exists (select from lane_slot s where s.lane = high.lane and s.open and s.job_id is null)
