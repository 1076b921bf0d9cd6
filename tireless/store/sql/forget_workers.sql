delete from worker where id = any(%(ids)s::text[])
