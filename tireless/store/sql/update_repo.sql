-- Changed settings make the repository due: an operator who changed something wants to see it.
update tracked_repo
   set interval_seconds = %(interval_seconds)s, quiet_from = %(quiet_from)s, quiet_until = %(quiet_until)s,
       quiet_zone = %(quiet_zone)s, enabled = %(enabled)s, max_running = %(max_running)s,
       verify_command = %(verify_command)s, clone_url = %(clone_url)s, default_branch = %(default_branch)s,
       daily_usd = %(daily_usd)s, daily_jobs = %(daily_jobs)s,
       next_poll_at = tireless_now()
 where id = %(id)s
returning *
