-- Those in hand, longest first, then the next of each lane in the order in which they would be claimed.
with held as (
    select j.*, 0 as rank
      from job j
     where j.state in ('claimed', 'running')
     order by j.claimed_lane, j.slot
     limit %(limit)s
), waiting as (
    select j.*, 1 as rank
      from lane l
      cross join lateral (
          select *
            from job p
           where p.lane = l.lane and p.state = 'pending'
           order by p.priority, p.run_at, p.number
           limit %(limit)s
      ) j
), shown as (
    select * from held union all select * from waiting
)
select s.id, s.forge, s.host, s.owner, s.repo, s.number, s.title, s.kind, coalesce(s.claimed_lane, s.lane) as lane,
       s.state, s.phase, s.attempts, s.max_attempts,
       case when s.rank = 0 then coalesce(
           (select max(e.at) from job_event e where e.job_id = s.id and e.kind = 'claimed'), s.updated_at)
            else s.created_at end as since,
       s.run_at, s.cancel_requested_at is not null as cancel_requested, left(s.last_error, 4000) as last_error,
       s.finished_at, s.pull_request_number, s.pull_request_url, null::float8 as cost_usd
  from shown s
 order by s.rank, case when s.rank = 0 then s.claimed_lane else s.lane end,
          case when s.rank = 1 then s.priority end,
          case when s.rank = 1 then s.run_at else s.updated_at end, s.number
