with changed as (
    update lane
       set held_until = null, hold_reason = null, held_since = null, budget_until = null,
           other_until = null, other_reason = null, probing = false, updated_at = tireless_now()
     where lane = %(lane)s
    returning lane
)
select count(pg_notify('tireless_lane_' || lane, '')) as n from changed
