-- Jobs in slots beyond the cap, each with a free slot within it to move to.
select high.job_id as job, high.slot as from_slot, low.slot as to_slot
  from (select slot, job_id, row_number() over (order by slot) as nth
          from lane_slot
         where lane = %(lane)s and slot > %(cap)s and job_id is not null) as high
  join (select slot, row_number() over (order by slot) as nth
          from lane_slot
         where lane = %(lane)s and slot <= %(cap)s and job_id is null) as low using (nth)
