insert into tracked_repo (forge, host, owner, repo, clone_url, default_branch, interval_seconds,
                          quiet_from, quiet_until, quiet_zone, enabled, max_running, verify_command,
                          daily_usd, daily_jobs,
                          next_poll_at, created_at)
values (%(forge)s, %(host)s, %(owner)s, %(repo)s, %(clone_url)s, %(default_branch)s, %(interval_seconds)s,
        %(quiet_from)s, %(quiet_until)s, %(quiet_zone)s, %(enabled)s, %(max_running)s, %(verify_command)s,
        %(daily_usd)s, %(daily_jobs)s,
        tireless_now(), tireless_now())
    on conflict do nothing
returning *
