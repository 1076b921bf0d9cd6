select w.*, j.id as job_id, tireless_now() as looked_at
  from worker w
  left join job j on j.claimed_by = w.id and j.state in ('claimed', 'running')
 where %(host)s::text is null or w.host = %(host)s
 order by w.host, w.role, w.lane, w.started_at
