-- Due repositories are work like any other: taken by rows, with SKIP LOCKED, so that several pollers share
-- them. Taking one moves it on by the time that a poll may need; a poller that dies loses nothing but that.
with due as (
    select id
      from tracked_repo
     where enabled and next_poll_at <= tireless_now()
       and not tireless_is_quiet(quiet_from, quiet_until, quiet_zone, tireless_now())
     order by next_poll_at
     limit %(limit)s
       for update skip locked
)
update tracked_repo
   set next_poll_at = tireless_now() + interval '3 minutes'
  from due
 where tracked_repo.id = due.id
returning tracked_repo.*, tireless_now() as listed_at
