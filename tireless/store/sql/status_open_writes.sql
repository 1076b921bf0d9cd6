-- What an operator may have to look at: refused for good (newest first), and not yet done (oldest first).
(select id, job_id, forge, host, owner, repo, number, op, state, attempts, next_try_at, created_at, done_at,
        left(last_error, 4000) as last_error
   from forge_write
  where state = 'refused'
  order by id desc
  limit %(limit)s)
 union all
(select id, job_id, forge, host, owner, repo, number, op, state, attempts, next_try_at, created_at, done_at,
        left(last_error, 4000)
   from forge_write
  where state = 'waiting'
  order by created_at, id
  limit %(limit)s)
