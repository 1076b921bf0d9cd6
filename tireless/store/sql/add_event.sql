insert into job_event (job_id, at, kind, actor, detail)
values (%(job)s, tireless_now(), %(kind)s, %(actor)s, %(detail)s::jsonb)
