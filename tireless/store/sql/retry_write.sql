update forge_write
   set next_try_at = tireless_now() + %(seconds)s * interval '1 second', last_error = %(error)s,
       locked_by = null, locked_until = null
 where id = %(id)s and state = 'waiting'
