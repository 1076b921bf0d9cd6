-- Slots follow the cap. Closing a slot waits for a claim that is just taking it (a row lock), so that the cap
-- holds from the moment this commits; a job already in a closed slot keeps it to its end.
with changed as (
    update lane set cap = %(cap)s, updated_at = tireless_now() where lane = %(lane)s returning lane, cap
), told as (
    select count(pg_notify('tireless_lane_' || lane, '')) as n from changed
), opened as (
    insert into lane_slot (lane, slot, open)
    select lane, n, true from changed cross join generate_series(1, cap) as n
        on conflict (lane, slot) do update set open = true where not lane_slot.open
), closed as (
    update lane_slot s set open = false from changed where s.lane = changed.lane and s.slot > changed.cap and s.open
)
select changed.* from changed cross join told
