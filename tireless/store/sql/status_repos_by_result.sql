select coalesce(poll_result, 'never') as result, count(*) as n from tracked_repo where enabled group by 1
