-- The sweep, and the release of a dead worker's claims: both take a job away from who no longer works it.
-- A job that has used up its attempts is failed instead of queued again, one that nobody wants is abandoned. Rows
-- locked by a completion that is under way are skipped: that completion, or the next sweep, is right about them.
with stale as (
    select id, claimed_lane as held_lane, slot as held_slot,
           case when cancel_requested_at is not null then 'abandoned'
                when attempts >= max_attempts then 'failed'
                else 'pending' end as "to"
      from job
     where state in ('claimed', 'running')
       and case when %(workers)s::text[] is null
                then claim_expires_at < tireless_now()
                else claimed_by = any(%(workers)s::text[]) end
-- include words_known
       for no key update skip locked
), moved as (
    update job
       set state = stale."to",
           finished_at = case when stale."to" <> 'pending' then tireless_now() end,
           run_at = case when job.attempts <= 1 then job.run_at -- the first time it keeps its place in the queue
                         else tireless_now() + least(%(backoff)s * power(2, job.attempts - 1), 3600)
                                               * interval '1 second' end,
           claimed_by = null, claim_expires_at = null, claimed_lane = null, slot = null, repo_slot = null,
           last_error = case stale."to"
                             when 'abandoned' then job.cancel_reason
                             when 'failed'
                             then format('gave up after %%s attempts; the last: %%s', job.attempts, %(why)s::text)
                             else %(why)s end,
           updated_at = tireless_now()
      from stale
     where job.id = stale.id
    returning job.*, held_lane, held_slot
), freed as (
    update lane_slot s
       set job_id = null, free_since = clock_timestamp()
      from moved
     where s.lane = moved.held_lane and s.slot = moved.held_slot
    returning s.lane
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select id, tireless_now(), %(event)s, %(actor)s,
           jsonb_build_object('why', %(why)s::text, 'seq', claim_seq, 'attempt', attempts, 'state', state)
      from moved
), lowered as (
    update lane_floor f set run_at = null
     where f.lane in (select lane from moved where state = 'pending')
), told as (
    select count(pg_notify('tireless_lane_' || lane, '')) as n
      from (select lane from freed union select lane from moved where state = 'pending') as lanes
)
select moved.* from moved cross join told
