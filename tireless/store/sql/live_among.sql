select id from job where id = any(%(jobs)s::uuid[]) and state in ('pending', 'claimed', 'running')
