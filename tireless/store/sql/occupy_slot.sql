with moved as (
    update lane_slot set job_id = %(job)s where lane = %(lane)s and slot = %(to_slot)s
)
update job set slot = %(to_slot)s where id = %(job)s
