select * from (
    select * from job
     where (%(owner)s::text is null or (lower(owner) = lower(%(owner)s) and lower(repo) = lower(%(repo)s)))
       and (%(number)s::bigint is null or number = %(number)s)
) as found
-- include wanted_jobs
