-- A hold is only ever lengthened by another: of two reasons the one that lasts longer is the one to obey, and
-- one without an end (no login, no credit) outlasts all. A usage limit (`probe`) holds for a minute at least: a reset
-- time that is past already must not have the lane run into the limit again and again.
with new as (
    select case when %(probe)s then greatest(given.at, tireless_now() + interval '1 minute') else given.at end as at
      from (select coalesce(%(until)s::timestamptz, tireless_now() + %(seconds)s * interval '1 second') as at) as given
)
update lane
   set held_until = case when hold_reason is not null and held_until is null then null
                         when new.at is null then null
                         else greatest(held_until, new.at) end,
       hold_reason = case when hold_reason is not null and held_until is null then hold_reason
                          when held_until > new.at then hold_reason
                          else %(reason)s end,
       held_since = case when hold_reason is not null and (held_until is null or held_until > tireless_now())
                         then coalesce(held_since, tireless_now()) else tireless_now() end,
       probing = probing or %(probe)s,
       updated_at = tireless_now()
  from new
 where lane = %(lane)s
returning held_until
