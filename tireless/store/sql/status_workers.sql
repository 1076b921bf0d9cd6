-- A runner says that it is there between jobs; while it works, the lease of its job says it.
select w.id, w.host, w.role, w.lane, w.pid, w.version, w.started_at, w.seen_at, j.id as job_id,
       w.waits_for,
       w.draining_since
  from worker w
  left join job j on j.claimed_by = w.id and j.state in ('claimed', 'running')
 order by w.host, w.role, w.lane, w.started_at, w.id
 limit %(limit)s
