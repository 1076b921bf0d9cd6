select count(*) as n, (array_agg(last_error order by updated_at desc))[1] as newest
  from job
 where state = 'pending'
   and run_at > tireless_now()
   and last_error is not null
