-- Done since midnight UTC, off forge_write_done_idx. Not the refused ones: these may still be settled (void), and a
-- count that can shrink is no counter.
select count(*) as n
  from forge_write
 where state = 'done'
   and done_at >= date_trunc('day', tireless_now() at time zone 'UTC') at time zone 'UTC'
