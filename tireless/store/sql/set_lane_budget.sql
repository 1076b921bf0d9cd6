update lane set daily_usd = %(usd)s, daily_jobs = %(jobs)s, updated_at = tireless_now() where lane = %(lane)s
returning lane
