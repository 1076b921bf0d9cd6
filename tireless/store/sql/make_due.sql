with due as (
    update tracked_repo set next_poll_at = tireless_now() where id = %(id)s and enabled returning id
)
select count(pg_notify('tireless_poll', '')) as n from due
