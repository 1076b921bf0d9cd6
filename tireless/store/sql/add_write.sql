insert into forge_write (job_id, forge, host, owner, repo, number, op, payload, next_try_at, created_at)
values (%(job)s, %(forge)s, %(host)s, %(owner)s, %(repo)s, %(number)s, %(op)s, %(payload)s::jsonb,
        tireless_now(), tireless_now())
returning *
