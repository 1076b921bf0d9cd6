-- The one gate through which a held job moves: only for who still holds the claim (the fence; `claimed_by` is set in a
-- held job and in no other, by the table's own constraints), never out of a terminal state. Leaving claimed and running
-- lets go of lease and slot in the same statement. A job that nobody wants any more is not queued again: asked to become
-- pending, it ends as abandoned. `held` is the row as it is once it is locked: its slot may have changed meanwhile.
with held as (
    select id as held_id, claimed_lane as held_lane, slot as held_slot from job
     where id = %(job)s and claimed_by = %(worker)s and claim_seq = %(seq)s for no key update
), moved as (
    update job
       set state = case when %(to)s = 'pending' and cancel_requested_at is not null then 'abandoned' else %(to)s end,
           phase = coalesce(%(phase)s, phase),
           last_error = case when %(to)s = 'pending' and cancel_requested_at is not null then cancel_reason
                             when %(set_error)s then %(error)s else last_error end,
           attempts = attempts - case when %(keep_attempt)s then 1 else 0 end,
           -- Without a delay it keeps its place in the queue.
           run_at = case when %(to)s = 'pending' and %(delay)s::interval > '0'
                         then tireless_now() + %(delay)s::interval else run_at end,
           finished_at = case when %(to)s in ('delivered', 'blocked', 'failed', 'abandoned')
                                or (%(to)s = 'pending' and cancel_requested_at is not null)
                              then tireless_now() end,
           claimed_by = case when %(to)s = 'running' then claimed_by end,
           claim_expires_at = case when %(to)s = 'running' then claim_expires_at end,
           claimed_lane = case when %(to)s = 'running' then claimed_lane end,
           slot = case when %(to)s = 'running' then slot end,
           repo_slot = case when %(to)s = 'running' then repo_slot end,
           updated_at = tireless_now()
      from held
     where id = held_id
    returning job.*, held_lane, held_slot
), freed as (
    update lane_slot s
       set job_id = null, free_since = clock_timestamp()
      from moved
     where s.job_id = moved.id and moved.slot is null
    returning s.lane
), freed_late as (
    -- Moved to another slot since this statement began (lanes.settle_slots): its row as it was then is not found by the
    -- job. By its number it is, at the price of all that it held before, where an old snapshot keeps that.
    update lane_slot s
       set job_id = null, free_since = clock_timestamp()
      from moved
     where s.lane = moved.held_lane and s.slot = moved.held_slot and moved.slot is null
       and not exists (select from freed)
    returning s.lane
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select id, tireless_now(), case when state = 'abandoned' then 'finished' else %(event)s end, %(worker)s,
           %(detail)s::jsonb || jsonb_build_object('state', state)
      from moved
), lowered as (
    update lane_floor f set run_at = null from moved where f.lane = moved.lane and moved.state = 'pending'
), told as (
    -- A freed slot may be what others wait for, and a job back in the queue is one to take.
    select count(pg_notify('tireless_lane_' || lane, '')) as n
      from (select lane from freed union select lane from freed_late
            union select lane from moved where state = 'pending') as lanes
)
select moved.* from moved cross join told
