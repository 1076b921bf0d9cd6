-- A hold is only ever lengthened by another: of two reasons the one that lasts longer is the one to obey, and
-- one without an end (no login, no credit) outlasts all. A usage limit (`probe`) holds for a minute at least: a reset
-- time that is past already must not have the lane run into the limit again and again. Beneath the hold of a budget
-- (`budget`), which is lifted when the budget is raised, the longest of the others is kept.
with new as (
    select case when %(probe)s then greatest(given.at, tireless_now() + interval '1 minute') else given.at end as at
      from (select coalesce(%(until)s::timestamptz, tireless_now() + %(seconds)s * interval '1 second') as at) as given
), found as (
    select lane,
           hold_reason is not null and (held_until is null or held_until > tireless_now()) as held,
           coalesce(hold_reason is not null and (held_until is null or held_until > new.at), false) as stands,
           coalesce(held_until = budget_until, false) as of_budget
      from lane cross join new
     where lane = %(lane)s
       for no key update of lane
), kept as (
    select case when stands and of_budget and not %(budget)s then 'new'
                when stands or (held and of_budget and %(budget)s) then 'same'
                when held and %(budget)s then 'old' end as beneath
      from found
)
update lane
   set held_until = case when stands then held_until else new.at end,
       hold_reason = case when stands then hold_reason else %(reason)s end,
       held_since = case when held then coalesce(held_since, tireless_now()) else tireless_now() end,
       budget_until = case when stands then budget_until when %(budget)s then new.at end,
       other_until = case when beneath = 'new' then greatest(other_until, new.at)
                          when beneath = 'same' then other_until
                          when beneath = 'old' then held_until end,
       other_reason = case when beneath = 'new' and (other_until is null or other_until <= new.at) then %(reason)s
                           when beneath in ('new', 'same') then other_reason
                           when beneath = 'old' then hold_reason end,
       probing = probing or %(probe)s,
       updated_at = tireless_now()
  from new, found, kept
 where lane.lane = found.lane
returning held_until
