select claimed_by, claim_expires_at, branch, work_host, base_commit, head_commit, parent_job_id, cancel_reason
  from job
 where id = %(job)s
