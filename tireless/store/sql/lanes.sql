select l.*,
       (select count(*) from job j where j.claimed_lane = l.lane and j.state in ('claimed', 'running')) as running,
       (select count(*) from job j where j.lane = l.lane and j.state = 'pending') as pending
  from lane l
 order by l.lane
