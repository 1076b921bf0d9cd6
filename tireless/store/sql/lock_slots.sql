select slot
  from lane_slot
 where lane = %(lane)s and (open or job_id is not null or slot <= %(cap)s)
 order by slot
   for no key update
