-- What a poller had taken when it died, by what only taking can explain: it is later than its interval allows, though
-- neither a failure nor a limit has put it off. One that another host's poller has in hand is polled twice, no more.
with due as (
    update tracked_repo
       set next_poll_at = tireless_now()
     where enabled and poll_failures = 0 and poll_result is distinct from 'limited'
       and next_poll_at > tireless_now()
       and coalesce(last_polled_at, '-infinity') + interval_seconds * interval '1 second' < tireless_now()
       and exists (select from worker where id = %(worker)s and role = 'poller')
    returning id
), told as (
    select count(pg_notify('tireless_poll', '')) as n where exists (select from due)
)
select due.id from due cross join told
