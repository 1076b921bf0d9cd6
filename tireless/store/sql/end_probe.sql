with changed as (
    update lane set probing = false, updated_at = tireless_now() where lane = %(lane)s and probing returning lane
)
select count(pg_notify('tireless_lane_' || lane, '')) as n from changed
