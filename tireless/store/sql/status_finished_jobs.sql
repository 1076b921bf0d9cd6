-- The newest ends, off job_finished_idx; what each has cost over all its runs.
select j.id, j.forge, j.host, j.owner, j.repo, j.number, j.title, j.kind, j.lane, j.state, j.phase, j.attempts,
       j.max_attempts, j.created_at as since, j.run_at, j.cancel_requested_at is not null as cancel_requested,
       left(j.last_error, 4000) as last_error, j.finished_at, j.pull_request_number, j.pull_request_url,
       (select sum(r.cost_usd) from agent_run r where r.job_id = j.id) as cost_usd
  from job j
 where j.finished_at is not null
 order by j.finished_at desc
 limit %(limit)s
