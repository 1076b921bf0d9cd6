-- Said again, it stays at the first time. The renewals of the job's lease say that the worker is still there.
update worker set draining_since = tireless_now() where id = %(id)s and draining_since is null
