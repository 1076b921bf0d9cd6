select job.*, tireless_now() as looked_at
  from job
 where repo_id = %(repo_id)s and state in ('pending', 'claimed', 'running')
