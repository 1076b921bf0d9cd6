-- Finished jobs past their keep, with their events, runs and children (cascades); a plan that still has live
-- children stays, and so does a job with a write that is not settled.
delete from job
 where id in (
     select j.id
       from job j
      where j.finished_at < tireless_now() - %(keep)s::interval
        and not exists (select from forge_write w where w.job_id = j.id and w.state in ('waiting', 'refused'))
        and not exists (select from job c
                         where c.parent_job_id = j.id and c.state in ('pending', 'claimed', 'running'))
      order by j.finished_at
      limit 1000)
