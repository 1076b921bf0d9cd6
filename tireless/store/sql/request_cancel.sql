-- A job in nobody's hands ends here and now; one that is held is asked to stop, and its runner sees that at the
-- notification or at its next renewal. Repeating it changes nothing, a terminal job least of all.
with target as (
    select id, state from job where id = any(%(jobs)s::uuid[]) order by id for no key update
), moved as (
    update job
       set state = case when job.state = 'pending' then 'abandoned' else job.state end,
           finished_at = case when job.state = 'pending' then tireless_now() end,
           last_error = case when job.state = 'pending' then %(reason)s else job.last_error end,
           cancel_requested_at = tireless_now(),
           cancel_reason = %(reason)s,
           updated_at = tireless_now()
      from target
     where job.id = target.id
       and job.state in ('pending', 'claimed', 'running') and job.cancel_requested_at is null
    returning job.*
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select id, tireless_now(), case when state = 'abandoned' then 'finished' else 'cancel_requested' end, %(actor)s,
           jsonb_build_object('why', %(reason)s::text, 'state', state)
      from moved
), told as (
    select count(pg_notify('tireless_cancel', '')) as n from (select 1 from moved limit 1) as once
)
select moved.* from moved cross join told
