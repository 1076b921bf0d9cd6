-- Live and ended jobs of an issue, each off an index of its own.
select * from (
    select * from job
     where lower(owner) = lower(%(owner)s) and lower(repo) = lower(%(repo)s) and number = %(number)s
       and state in ('pending', 'claimed', 'running')
     union all
    select * from job
     where lower(owner) = lower(%(owner)s) and lower(repo) = lower(%(repo)s) and number = %(number)s
       and finished_at is not null
) as found
-- include wanted_jobs
