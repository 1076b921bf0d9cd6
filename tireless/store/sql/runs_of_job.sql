select * from agent_run where job_id = %(job)s order by started_at, id
