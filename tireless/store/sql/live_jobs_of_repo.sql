-- Pending ones by repository; those in hand are few, over all repositories.
select j.* from lane l join job j on j.lane = l.lane
 where coalesce(j.repo_id, 0) = %(repo_id)s and j.state = 'pending'
 union all
select * from job where repo_id = %(repo_id)s and state in ('claimed', 'running')
