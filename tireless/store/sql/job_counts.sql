select state, lane, count(*) as n from job group by state, lane
