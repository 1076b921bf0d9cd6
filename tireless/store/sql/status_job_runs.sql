select id, agent, host, model, resumed, started_at, ended_at, outcome, left(detail, 4000) as detail, exit_code,
       cost_usd, input_tokens, output_tokens, turns
  from (select * from agent_run where job_id = %(job)s order by started_at desc, id limit %(limit)s) as newest
 order by started_at, id
