-- The hold that a budget made, and no other.
with changed as (
    update lane
       set held_until = case when other_until > tireless_now() then other_until end,
           hold_reason = case when other_until > tireless_now() then other_reason end,
           held_since = case when other_until > tireless_now() then held_since end,
           budget_until = null, other_until = null, other_reason = null, updated_at = tireless_now()
     where lane = %(lane)s and held_until = budget_until
    returning lane
)
select count(pg_notify('tireless_lane_' || lane, '')) as n from changed
