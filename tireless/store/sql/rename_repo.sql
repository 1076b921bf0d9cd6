-- A moved repository keeps its row and its live jobs follow, so that one issue stays one issue.
with renamed as (
    update tracked_repo
       set owner = %(owner)s, repo = %(repo)s, clone_url = %(clone_url)s, last_etag = null, body_hash = null
     where id = %(id)s
    returning id
), jobs as (
    update job set owner = %(owner)s, repo = %(repo)s, updated_at = tireless_now()
      from renamed
     where job.repo_id = renamed.id and job.state in ('pending', 'claimed', 'running')
)
update forge_write w set owner = %(owner)s, repo = %(repo)s
  from job, renamed
 where w.job_id = job.id and job.repo_id = renamed.id and w.state = 'waiting'
