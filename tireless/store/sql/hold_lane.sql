-- A hold is only ever lengthened by another: of two reasons the one that lasts longer is the one to obey, and
-- one without an end (no login, no credit) outlasts all.
update lane
   set held_until = case when hold_reason is not null and held_until is null then null
                         when %(seconds)s::float8 is null and %(until)s::timestamptz is null then null
                         else greatest(held_until, coalesce(%(until)s::timestamptz,
                              tireless_now() + %(seconds)s * interval '1 second')) end,
       hold_reason = case when hold_reason is not null and held_until is null then hold_reason
                          when held_until > coalesce(%(until)s::timestamptz,
                                                     tireless_now() + %(seconds)s * interval '1 second')
                              then hold_reason
                          else %(reason)s end,
       probing = probing or %(probe)s,
       updated_at = tireless_now()
 where lane = %(lane)s
returning held_until
