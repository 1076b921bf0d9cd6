-- What the UTC day has cost so far, of a lane and of a repository, beside what each may; jobs are counted by their
-- first run of the day. One look a run, over the day's runs only.
with day as (
    select date_trunc('day', tireless_now() at time zone 'UTC') at time zone 'UTC' as began
), run as (
    select r.agent, r.job_id, j.repo_id, r.cost_usd
      from day
      join agent_run r on r.started_at >= day.began
      join job j on j.id = r.job_id
)
select day.began + interval '1 day' as ends_at,
       l.daily_usd as lane_usd, l.daily_jobs as lane_jobs,
       (select coalesce(sum(cost_usd), 0) from run where agent = l.lane) as lane_usd_spent,
       (select count(distinct job_id) from run where agent = l.lane) as lane_jobs_spent,
       t.daily_usd as repo_usd, t.daily_jobs as repo_jobs,
       (select coalesce(sum(cost_usd), 0) from run where repo_id = t.id) as repo_usd_spent,
       (select count(distinct job_id) from run where repo_id = t.id) as repo_jobs_spent
  from day
  left join lane l on l.lane = %(lane)s
  left join tracked_repo t on t.id = %(repo_id)s
 where l.daily_usd is not null or l.daily_jobs is not null
    or t.daily_usd is not null or t.daily_jobs is not null
