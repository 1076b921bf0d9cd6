-- Part of the queries that find jobs: what narrows them down however they are found, and their order.
 where (%(states)s::text[] is null or state = any(%(states)s::text[]))
   and (%(forge)s::text is null or forge = %(forge)s)
   and (%(host)s::text is null or lower(host) = lower(%(host)s))
   and (%(lane)s::text is null or lane = %(lane)s)
   and (%(id_prefix)s::text is null or id::text like %(id_prefix)s || '%%')
 order by created_at desc, number desc
 limit %(limit)s
