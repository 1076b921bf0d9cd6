insert into forge_limit (host, token, limited_until)
values (%(host)s, %(token)s, tireless_now() + %(seconds)s * interval '1 second')
    on conflict (host, token)
    do update set limited_until = greatest(forge_limit.limited_until, excluded.limited_until)
