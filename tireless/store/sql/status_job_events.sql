-- The newest, in the order in which they happened: a job that went round and round must not fill the page.
select id, at, kind, actor, detail
  from (select id, at, kind, actor, left(detail::text, 4000) as detail
          from job_event
         where job_id = %(job)s
         order by id desc
         limit %(limit)s) as newest
 order by id
