-- One look of the poller: seconds until the next of each kind is to be done; negative if one is due, null if none is
-- known. A repository in its quiet hours is not waited for: it would be due all the time.
with clock as materialized (
    select tireless_now() as now
), queue as materialized (
    -- By the order of the claim's own index: a few probes, however long the queue is.
    select l.lane,
           exists (select from job j
                    where j.state = 'pending' and j.lane = l.lane and j.priority = p.priority
                      and j.run_at > coalesce(%(since)s::timestamptz, '-infinity') and j.run_at <= clock.now) as ripe,
           (select j.run_at from job j
             where j.state = 'pending' and j.lane = l.lane and j.priority = p.priority and j.run_at > clock.now
             order by j.run_at
             limit 1) as next
      from clock
     cross join lane l
     cross join generate_series(0, 9) as p (priority)
), told as materialized (
    -- A backoff that has ended since the last look: nobody else tells the runners.
    select count(pg_notify('tireless_lane_' || lane, '')) as n
      from (select lane from queue where ripe group by lane) as ripe
), pulse as materialized (
    select count(pg_notify('tireless_pulse', '')) as n where %(pulse)s
)
select clock.now as at,
       extract(epoch from (select min(next) from queue) - clock.now)::float8 as job,
       extract(epoch from (
           select min(next_poll_at)
             from tracked_repo
            where enabled and not tireless_is_quiet(quiet_from, quiet_until, quiet_zone, clock.now)
       ) - clock.now)::float8 as poll,
       -- As take_write.sql takes them: the first of each issue, and none that somebody has in hand.
       extract(epoch from (
           select min(greatest(w.next_try_at, w.locked_until))
             from forge_write w
            where w.state = 'waiting'
-- include first_of_issue
       ) - clock.now)::float8 as write,
       -- Of the jobs that expire_stale_claims.sql would take: for others it would be due until a newer program comes.
       extract(epoch from (
           select min(claim_expires_at)
             from job
            where state in ('claimed', 'running')
-- include words_known
       ) - clock.now)::float8 as lease,
       extract(epoch from (select min(held_until) from lane) - clock.now)::float8 as hold,
       exists (select from lane where hold_reason is not null) as held
  from clock
 cross join told
 cross join pulse
