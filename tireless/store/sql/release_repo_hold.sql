with changed as (
    update tracked_repo set held_until = null, hold_reason = null where id = %(id)s returning id
), told as (
    select count(pg_notify('tireless_lane_' || lane.lane, '')) as n from lane cross join changed
)
select changed.id from changed cross join told
