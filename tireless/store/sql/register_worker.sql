insert into worker (id, host, role, lane, pid, version, started_at, seen_at, waits_for)
values (%(id)s, %(host)s, %(role)s, %(lane)s, %(pid)s, %(version)s, tireless_now(), tireless_now(), %(waits_for)s)
    on conflict (id) do update set seen_at = tireless_now(), waits_for = excluded.waits_for
