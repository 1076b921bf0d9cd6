-- No payload: it is what the forge shows, or will show.
select id, job_id, forge, host, owner, repo, number, op, state, attempts, next_try_at, created_at, done_at,
       left(last_error, 4000) as last_error
  from (select * from forge_write where job_id = %(job)s order by id desc limit %(limit)s) as newest
 order by id
