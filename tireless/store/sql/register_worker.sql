insert into worker (id, host, role, lane, pid, version, started_at, seen_at)
values (%(id)s, %(host)s, %(role)s, %(lane)s, %(pid)s, %(version)s, tireless_now(), tireless_now())
    on conflict (id) do update set seen_at = tireless_now()
