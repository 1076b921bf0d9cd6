-- Nobody will conclude these any more: their runner died, and the job has ended since.
with closed as (
    update agent_run
       set ended_at = tireless_now(), outcome = 'crashed', detail = 'was cut off half-way'
     where job_id = %(job)s and ended_at is null
    returning *
)
insert into job_event (job_id, at, kind, actor, detail)
select job_id, tireless_now(), 'agent_ended', %(actor)s,
       jsonb_build_object('run', id, 'outcome', outcome, 'detail', detail)
  from closed
