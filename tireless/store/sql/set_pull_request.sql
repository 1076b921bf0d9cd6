update job
   set pull_request_number = %(number)s, pull_request_url = %(url)s, updated_at = tireless_now()
 where id = %(job)s
