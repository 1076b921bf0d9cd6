-- A phase is complete, or a fact of it is known: written by who still holds the claim, or not at all.
with moved as (
    update job
       set phase = coalesce(%(phase)s, phase),
           work_host = coalesce(%(work_host)s, work_host),
           branch = coalesce(%(branch)s, branch),
           base_commit = coalesce(%(base_commit)s, base_commit),
           head_commit = coalesce(%(head_commit)s, head_commit),
           result = coalesce(%(result)s::jsonb, result),
           updated_at = tireless_now()
     where id = %(job)s and claimed_by = %(worker)s and claim_seq = %(seq)s
    returning *
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select id, tireless_now(), 'phase', %(worker)s, jsonb_build_object('phase', phase)
      from moved
     where %(phase)s::text is not null
)
select * from moved
