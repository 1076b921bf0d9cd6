-- A newer state of the same thing overtakes one that nobody has begun to tell: people see the last word only.
with overtaken as (
    update forge_write
       set state = 'void', done_at = tireless_now()
     where state = 'waiting' and op = %(op)s and op in ('state_label', 'status_comment')
       and forge = %(forge)s and lower(host) = lower(%(host)s) and lower(owner) = lower(%(owner)s)
       and lower(repo) = lower(%(repo)s) and number = %(number)s
       and (op = 'state_label' or job_id = %(job)s)
       and locked_until is null
)
insert into forge_write (job_id, forge, host, owner, repo, number, op, payload, next_try_at, created_at)
values (%(job)s, %(forge)s, %(host)s, %(owner)s, %(repo)s, %(number)s, %(op)s, %(payload)s::jsonb,
        tireless_now(), tireless_now())
returning *
