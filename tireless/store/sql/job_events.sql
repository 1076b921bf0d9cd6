select * from job_event where job_id = %(job)s and id > %(after)s order by id
