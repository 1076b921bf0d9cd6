-- How many of its lane go before a pending job, and how many of its repository are in somebody's hands.
select (select count(*)
          from job o
         where o.state = 'pending' and o.lane = j.lane and o.run_at <= tireless_now()
           and (o.priority, o.run_at, o.number) < (j.priority, j.run_at, j.number))::integer as ahead,
       (select count(*)
          from job o
         where o.state in ('claimed', 'running') and o.repo_id = j.repo_id)::integer as repo_running
  from job j
 where j.id = %(id)s
