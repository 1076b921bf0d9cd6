with moved as (
    update forge_write
       set state = %(state)s, result = %(result)s::jsonb, last_error = %(error)s, done_at = tireless_now(),
           locked_by = null, locked_until = null
     where id = %(id)s and state = 'waiting'
    returning *
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select job_id, tireless_now(), case when state = 'done' then 'write_done' else 'write_refused' end, %(worker)s,
           jsonb_strip_nulls(jsonb_build_object('op', op, 'result', result, 'why', last_error))
      from moved
     where job_id is not null
)
select id from moved
