-- Present: seen within five minutes (an idle process says so every minute), or holding a job.
select w.role, count(*) as n
  from worker w
 where w.seen_at > tireless_now() - interval '5 minutes'
    or exists (select from job j where j.claimed_by = w.id and j.state in ('claimed', 'running'))
 group by w.role
