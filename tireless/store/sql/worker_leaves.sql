delete from worker w
 where w.id = %(id)s
   and not exists (select from job j where j.claimed_by = w.id and j.state in ('claimed', 'running'))
