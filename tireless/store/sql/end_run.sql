with ended as (
    update agent_run
       set ended_at = tireless_now(), outcome = %(outcome)s, detail = %(detail)s, exit_code = %(exit_code)s,
           cost_usd = coalesce(%(cost_usd)s, cost_usd), input_tokens = coalesce(%(input_tokens)s, input_tokens),
           output_tokens = coalesce(%(output_tokens)s, output_tokens), turns = coalesce(%(turns)s, turns),
           model = coalesce(%(model)s, model), session_id = coalesce(%(session)s, session_id)
     where id = %(run)s and ended_at is null
    returning *
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select job_id, tireless_now(), 'agent_ended', %(worker)s,
           jsonb_strip_nulls(jsonb_build_object('run', id, 'outcome', outcome, 'detail', detail,
                                                'cost_usd', cost_usd, 'exit_code', exit_code))
      from ended
)
select * from ended
