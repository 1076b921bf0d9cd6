-- Only for who holds the claim: an agent must not start on a lost one.
with mine as (
    select id from job
     where id = %(job)s and claimed_by = %(worker)s and claim_seq = %(seq)s
       for no key update
), added as (
    insert into agent_run (id, job_id, claim_seq, agent, host, worker, session_id, resumed, started_at)
    select %(run)s, mine.id, %(seq)s, %(agent)s, %(host)s, %(worker)s, %(session)s, %(resumed)s, tireless_now()
      from mine
    on conflict (id) do update set host = excluded.host -- asked again, since the first answer got lost
    returning *
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select job_id, tireless_now(), 'agent_started', worker,
           jsonb_build_object('run', id, 'agent', agent, 'session', session_id, 'resumed', resumed)
      from added
)
select * from added
