-- Due repositories are work like any other: taken by rows, with SKIP LOCKED, so that several pollers share
-- them. Taking one moves it on by the time that a poll may need; a poller that dies loses nothing but that.
-- Of each host only so many are taken as it has places: what is due on one that hangs stands before nobody.
with recursive tracked_host as (
    (select forge, lower(host) as host from tracked_repo order by forge, lower(host) limit 1)
     union all
    select next.*
      from tracked_host h
     cross join lateral (
         select r.forge, lower(r.host)
           from tracked_repo r
          where (r.forge, lower(r.host)) > (h.forge, h.host)
          order by r.forge, lower(r.host)
          limit 1) as next
), place as (
    select h.forge, h.host, coalesce(known.places, %(places_elsewhere)s) as places
      from tracked_host h
      left join unnest(%(forges)s::text[], %(hosts)s::text[], %(places)s::integer[]) as known (forge, host, places)
        on known.forge = h.forge and known.host = h.host
), due as (
    select found.id
      from place
     cross join lateral (
         select r.id, r.next_poll_at
           from tracked_repo r
          where r.enabled and r.forge = place.forge and lower(r.host) = place.host
            and r.next_poll_at <= tireless_now()
            and not tireless_is_quiet(r.quiet_from, r.quiet_until, r.quiet_zone, tireless_now())
          order by r.next_poll_at
          limit place.places
            for update skip locked) as found
     order by found.next_poll_at
     limit %(limit)s
)
update tracked_repo
   set next_poll_at = tireless_now() + interval '3 minutes'
  from due
 where tracked_repo.id = due.id
returning tracked_repo.*, tireless_now() as listed_at
