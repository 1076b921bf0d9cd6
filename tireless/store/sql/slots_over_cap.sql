-- Jobs in slots beyond the cap, each with a free slot within it to move to; locked, so that none of them ends while it
-- is moved. One in somebody's hands at this moment is left where it is: to wait for it with slots locked would be
-- the wrong way round.
select high.job_id as job, high.slot as from_slot, low.slot as to_slot
  from (select slot, job_id, row_number() over (order by slot) as nth
          from lane_slot
         where lane = %(lane)s and slot > %(cap)s and job_id is not null) as high
  join (select slot, row_number() over (order by slot) as nth
          from lane_slot
         where lane = %(lane)s and slot <= %(cap)s and job_id is null) as low using (nth)
  join job j on j.id = high.job_id and j.claimed_lane = %(lane)s and j.slot = high.slot
   for no key update of j skip locked
