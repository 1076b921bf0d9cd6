-- A hold with a known end lifts itself; claims go by held_until already, this tidies the row and wakes runners.
with changed as (
    update lane set held_until = null, hold_reason = null, held_since = null, budget_until = null,
           other_until = null, other_reason = null, updated_at = tireless_now()
     where held_until <= tireless_now()
    returning lane
), told as (
    select count(pg_notify('tireless_lane_' || lane, '')) as n from changed
)
select changed.lane from changed cross join told
