update tracked_repo
   set held_until = %(until)s, hold_reason = %(reason)s
 where id = %(id)s and (held_until is null or held_until < %(until)s)
