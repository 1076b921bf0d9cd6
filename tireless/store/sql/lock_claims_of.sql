select id from job where claimed_by = any(%(workers)s::text[]) order by id for no key update
