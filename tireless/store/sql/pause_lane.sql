with changed as (
    update lane set paused = %(paused)s, pause_reason = %(reason)s, updated_at = tireless_now()
     where lane = %(lane)s
    returning lane, paused
)
select count(pg_notify('tireless_lane_' || lane, '')) as n from changed where not paused
