-- What is due on a host that has limited us is not taken to be told so one by one: it waits where it is.
with due as (
    select r.id, l.seconds
      from unnest(%(forges)s::text[], %(hosts)s::text[], %(seconds)s::float8[]) as l (forge, host, seconds)
      join tracked_repo r on r.forge = l.forge and lower(r.host) = l.host
     where r.enabled and r.next_poll_at <= tireless_now()
       for update of r skip locked
)
update tracked_repo r
   set next_poll_at = tireless_now() + due.seconds * interval '1 second'
                      + (hashtext(r.forge || lower(r.host) || lower(r.owner) || lower(r.repo)) & 1023) / 1024.0
                        * r.interval_seconds * interval '1 second',
       poll_result = 'limited',
       poll_detail = 'not asked: the forge has limited this token for ' || ceil(due.seconds) || ' s'
  from due
 where r.id = due.id
