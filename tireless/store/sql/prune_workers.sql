delete from worker w
 where w.seen_at < tireless_now() - interval '7 days'
   and not exists (select from job j where j.claimed_by = w.id and j.state in ('claimed', 'running'))
