-- Where each lane's next look begins: at the first job that is pending and due, so far as this statement sees; it is asked
-- under the locks of lock_floors.sql, so it sees every job that was put back before.
update lane_floor f
   set priority = head.priority, run_at = head.run_at,
       -- More jobs of this very moment may come, with lower numbers.
       number = case when head.run_at < tireless_now() then head.number else 0 end,
       full_at = case when due.trusted then f.full_at else tireless_now() end
  from (select lane, priority, run_at, number,
               run_at is not null and full_at between tireless_now() - interval '1 minute' and tireless_now()
                   as trusted
          from lane_floor) as due
  left join lateral (
      select j.priority, j.run_at, j.number
        from job j
       where j.lane = due.lane and j.state = 'pending' and j.run_at <= tireless_now()
         and (j.priority, j.run_at, j.number)
             >= (case when due.trusted then due.priority else 0::smallint end,
                 case when due.trusted then due.run_at else '-infinity' end,
                 case when due.trusted then due.number else 0 end)
       order by j.priority, j.run_at, j.number
       limit 1
  ) head on true
 where f.lane = due.lane
