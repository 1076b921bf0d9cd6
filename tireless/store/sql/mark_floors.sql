-- Where each lane's next look at its fresh jobs begins: at the first that is there, so far as this statement sees.
-- A job whose enqueue commits late may lie below; hence a look from the bottom once a minute.
with due as (
    select f.lane, f.full_at between tireless_now() - interval '1 minute' and tireless_now() as trusted,
           f.priority, f.run_at, f.number
      from lane_floor f
     where f.lane = any(%(lanes)s::text[])
     order by f.lane
       for update
)
update lane_floor f
   set priority = head.priority, run_at = head.run_at, number = head.number,
       full_at = case when due.trusted and due.run_at is not null then f.full_at else tireless_now() end
  from due
  left join lateral (
      select j.priority, j.run_at, j.number
        from job j
       where j.lane = due.lane and j.state = 'pending' and j.claim_seq = 0
         and (j.priority, j.run_at, j.number)
             >= (case when due.trusted and due.run_at is not null then due.priority else 0::smallint end,
                 case when due.trusted and due.run_at is not null then due.run_at else '-infinity' end,
                 case when due.trusted and due.run_at is not null then due.number else 0 end)
       order by j.priority, j.run_at, j.number
       limit 1
  ) head on true
 where f.lane = due.lane
