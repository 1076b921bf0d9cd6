-- Open writes only: each state has a partial index of its own.
select state, count(*) as n, min(created_at) as oldest_at from forge_write where state = 'waiting' group by state
 union all
select state, count(*), min(created_at) from forge_write where state = 'refused' group by state
