update lane_slot set job_id = null, free_since = clock_timestamp() where lane = %(lane)s and slot = %(from_slot)s
