select max(finished_at) as last
  from job
 where forge = %(forge)s and lower(host) = lower(%(host)s) and lower(owner) = lower(%(owner)s)
   and lower(repo) = lower(%(repo)s) and number = %(number)s
   and finished_at is not null and kind = %(kind)s and state = 'delivered'
