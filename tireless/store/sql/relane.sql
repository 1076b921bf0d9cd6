-- Jobs that wait in a lane held for long, to a lane that may start something. Not those that a label binds to their
-- lane, that an agent has begun (its session is worth something only there), or that were moved before: with both lanes
-- held in turn they would go to and fro. A few a time; who is locked is being claimed or cancelled.
with held as (
    select l.lane, l.hold_reason, l.held_until
      from lane l
     where l.hold_reason is not null and (l.held_until is null or l.held_until > tireless_now())
       and coalesce(l.held_since, l.updated_at) <= tireless_now() - %(after)s::interval
), open as (
    select l.lane
      from lane l
     where l.lane = any(%(lanes)s::text[]) and l.cap > 0 and not l.paused and not l.probing
       and (l.hold_reason is null or l.held_until <= tireless_now())
     order by l.lane
     limit 1
), chosen as (
    select j.id, held.lane as was, held.hold_reason, held.held_until, open.lane as goes
      from held
      join open on open.lane <> held.lane
      join job j on j.lane = held.lane and j.state = 'pending'
     where j.attempts = 0 and not j.lane_pinned and j.relaned_at is null
       and not exists (select from agent_run r where r.job_id = j.id)
     order by j.priority, j.run_at, j.number
     limit 100
       for no key update of j skip locked
), moved as (
    update job
       set lane = chosen.goes, relaned_at = tireless_now(), updated_at = tireless_now()
      from chosen
     where job.id = chosen.id
    returning job.*, chosen.was, chosen.hold_reason, chosen.held_until
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select id, tireless_now(), 'relaned', %(actor)s,
           jsonb_strip_nulls(jsonb_build_object('from', was, 'lane', lane, 'why', hold_reason, 'held_until', held_until))
      from moved
), lowered as (
    update lane_floor f set run_at = null where f.lane in (select lane from moved)
), told as (
    select count(pg_notify('tireless_lane_' || lane, '')) as n from (select distinct lane from moved) as lanes
)
select moved.* from moved cross join told
