-- The lane is cached intent: refreshed while the job is live, never in history. The kind follows too, as long as
-- nobody has begun the job. A job that was moved out of a held lane (relane.sql) is bound by a label only.
with asked as (
    select a.id, a.kind, a.pinned, j.lane as old_lane, j.kind as old_kind,
           case when j.relaned_at is null or a.pinned then a.lane else j.lane end as lane,
           j.state = 'pending' and j.claim_seq = 0 as unbegun
      from unnest(%(jobs)s::uuid[], %(kinds)s::text[], %(lanes)s::text[], %(pinned)s::boolean[])
        as a (id, kind, lane, pinned)
      join job j on j.id = a.id
     order by j.id
       for no key update of j
), updated as (
    update job
       set lane = asked.lane,
           kind = case when asked.unbegun then asked.kind else job.kind end,
           lane_pinned = asked.pinned,
           updated_at = tireless_now()
      from asked
     where job.id = asked.id and job.state in ('pending', 'claimed', 'running')
       and (job.lane <> asked.lane or job.lane_pinned <> asked.pinned
            or (job.kind <> asked.kind and asked.unbegun))
    returning job.*, asked.old_lane, asked.old_kind
), moved as (
    select * from updated where lane <> old_lane or kind <> old_kind
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select id, tireless_now(), 'rerouted', %(actor)s, jsonb_build_object('lane', lane, 'kind', kind) from moved
), lowered as (
    -- It brings its place in the queue along, and that may be below where the other lane looks.
    update lane_floor f set run_at = null
     where f.lane in (select lane from moved where state = 'pending')
), told as (
    select count(pg_notify('tireless_lane_' || lane, '')) as n
      from (select distinct lane from moved where state = 'pending') as lanes
)
select moved.id from moved cross join told
