with added as (
    insert into lane (lane, cap, updated_at) values (%(lane)s, %(cap)s, tireless_now())
        on conflict do nothing
    returning lane, cap
), slots as (
    insert into lane_slot (lane, slot, open)
    select added.lane, n, n <= added.cap from added cross join generate_series(1, 1000) as n
)
insert into lane_floor (lane) select lane from added
