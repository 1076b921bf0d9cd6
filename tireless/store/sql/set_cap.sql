-- Slots follow the cap. Every slot that this changes is locked already (lanes.set_cap).
with changed as (
    update lane set cap = %(cap)s, updated_at = tireless_now() where lane = %(lane)s returning lane, cap
), told as (
    select count(pg_notify('tireless_lane_' || lane, '')) as n from changed
), moved as (
    update lane_slot s
       set open = s.slot <= changed.cap
      from changed
     where s.lane = changed.lane and s.open <> (s.slot <= changed.cap)
)
select changed.* from changed cross join told
