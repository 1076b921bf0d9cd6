select *
  from job
 where (%(states)s::text[] is null or state = any(%(states)s::text[]))
   and (%(forge)s::text is null or forge = %(forge)s)
   and (%(host)s::text is null or lower(host) = lower(%(host)s))
   and (%(lane)s::text is null or lane = %(lane)s)
   and (%(owner)s::text is null or (lower(owner) = lower(%(owner)s) and lower(repo) = lower(%(repo)s)))
   and (%(number)s::bigint is null or number = %(number)s)
   and (%(id_prefix)s::text is null or id::text like %(id_prefix)s || '%%')
 order by created_at desc, number desc
 limit %(limit)s
