delete from tracked_repo where id = %(id)s
