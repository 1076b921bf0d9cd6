-- Those in trouble first. No clone URL: an operator may have written a user into it.
select id, forge, host, owner, repo, enabled, poll_result, left(poll_detail, 4000) as poll_detail, poll_failures,
       last_polled_at, next_poll_at
  from tracked_repo
 order by enabled desc, poll_failures desc, lower(host), lower(owner), lower(repo), id
 limit %(limit)s
