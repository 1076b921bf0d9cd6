update tracked_repo set held_until = null, hold_reason = null where id = %(id)s
