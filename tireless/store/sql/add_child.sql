insert into child_issue (parent_job_id, key, forge, host, owner, repo, number, url, created_at)
values (%(job)s, %(key)s, %(forge)s, %(host)s, %(owner)s, %(repo)s, %(number)s, %(url)s, tireless_now())
    on conflict do nothing
