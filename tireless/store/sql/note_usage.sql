update agent_run
   set cost_usd = coalesce(%(cost_usd)s, cost_usd), input_tokens = coalesce(%(input_tokens)s, input_tokens),
       output_tokens = coalesce(%(output_tokens)s, output_tokens), turns = coalesce(%(turns)s, turns),
       model = coalesce(%(model)s, model), session_id = coalesce(%(session)s, session_id)
 where id = %(run)s and ended_at is null
