select title, body, author, seen_at from job_text where job_id = %(job)s
