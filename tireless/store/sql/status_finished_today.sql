-- Since midnight UTC, off job_finished_idx.
select lane, state, count(*) as n
  from job
 where finished_at >= date_trunc('day', tireless_now() at time zone 'UTC') at time zone 'UTC'
 group by lane, state
