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
 where (%(states)s::text[] is null or state = any(%(states)s::text[]))
   and (%(forge)s::text is null or forge = %(forge)s)
   and (%(host)s::text is null or lower(host) = lower(%(host)s))
   and (%(lane)s::text is null or lane = %(lane)s)
   and (%(id_prefix)s::text is null or id::text like %(id_prefix)s || '%%')
 order by created_at desc, number desc
 limit %(limit)s
