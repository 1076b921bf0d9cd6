-- What the UTC day has cost so far, a lane; as spent_today.sql reckons.
select l.lane, coalesce(sum(r.cost_usd), 0)::float8 as usd, count(distinct r.job_id) as jobs
  from lane l
  left join agent_run r
    on r.agent = l.lane and r.started_at >= date_trunc('day', tireless_now() at time zone 'UTC') at time zone 'UTC'
 group by l.lane
