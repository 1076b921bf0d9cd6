-- Seconds until the poller has something to do, of what is known now; null if nothing is.
select extract(epoch from least(
           (select min(next_poll_at) from tracked_repo where enabled),
           (select min(next_try_at) from forge_write where state = 'waiting')
       ) - tireless_now())::float8 as seconds
