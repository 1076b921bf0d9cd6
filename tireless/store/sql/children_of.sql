select * from child_issue where parent_job_id = %(job)s order by created_at, key
