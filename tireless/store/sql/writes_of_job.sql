select * from forge_write where job_id = %(job)s order by id
