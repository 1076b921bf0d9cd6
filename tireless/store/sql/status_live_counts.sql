-- Live jobs only: each half reads one partial index, whatever the number of finished jobs.
select lane, state, count(*) as n from job where state = 'pending' group by lane, state
 union all
select claimed_lane, state, count(*) from job where state in ('claimed', 'running') group by claimed_lane, state
