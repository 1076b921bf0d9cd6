select *
  from tracked_repo
 where (%(id)s::bigint is null or id = %(id)s)
   and (%(forge)s::text is null or forge = %(forge)s)
   and (%(host)s::text is null or lower(host) = lower(%(host)s))
   and (%(owner)s::text is null or lower(owner) = lower(%(owner)s))
   and (%(repo)s::text is null or lower(repo) = lower(%(repo)s))
 order by id
