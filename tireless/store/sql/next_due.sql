-- Seconds until the poller has something to do, of what is known now; null if nothing is. A repository in its quiet
-- hours is not waited for: it would be due all the time.
select extract(epoch from (
           select min(next_poll_at)
             from tracked_repo
            where enabled and not tireless_is_quiet(quiet_from, quiet_until, quiet_zone, tireless_now())
       ) - tireless_now())::float8 as poll,
       extract(epoch from (select min(next_try_at) from forge_write where state = 'waiting')
                          - tireless_now())::float8 as write
