-- Runs that ended since midnight UTC, and so only ever more of them until the next. The start bounds the read of
-- agent_run_day_idx: a run that took over two days is not counted.
select agent, outcome, count(*) as n, coalesce(sum(cost_usd), 0) as cost_usd,
       coalesce(sum(input_tokens), 0)::bigint as input_tokens,
       coalesce(sum(output_tokens), 0)::bigint as output_tokens
  from agent_run
 where started_at >= date_trunc('day', tireless_now() at time zone 'UTC') at time zone 'UTC' - interval '2 days'
   and ended_at >= date_trunc('day', tireless_now() at time zone 'UTC') at time zone 'UTC'
   and outcome is not null
 group by agent, outcome
