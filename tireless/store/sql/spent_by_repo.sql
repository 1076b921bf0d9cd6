-- What the UTC day has cost so far, a repository that ran anything; as spent_today.sql reckons.
select j.repo_id, coalesce(sum(r.cost_usd), 0)::float8 as usd, count(distinct r.job_id) as jobs
  from agent_run r
  join job j on j.id = r.job_id
 where r.started_at >= date_trunc('day', tireless_now() at time zone 'UTC') at time zone 'UTC'
   and j.repo_id is not null
 group by j.repo_id
