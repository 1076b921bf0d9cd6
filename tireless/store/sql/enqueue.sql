-- One round trip for a whole sweep of one repository, each issue once. Skipped, each for a reason of its own:
--   a live job (the partial unique index says so), a forge write still waiting or an opt-in label that the forge
--   would not take off (an agent must not repeat finished work), a list that was read before the last job's
--   end or its last write (the label in it may be the old one), a survey that ran within its cooldown, a label
--   that somebody set who may not start work.
with moment as materialized (
    select tireless_now() as at -- asked for once, not for each row
), found as (
    select *
      from unnest(%(ids)s::uuid[], %(numbers)s::bigint[], %(titles)s::text[], %(kinds)s::text[],
                  %(lanes)s::text[], %(child_lanes)s::text[], %(bodies)s::text[], %(authors)s::text[],
                  %(pinned)s::boolean[])
        as f (id, number, title, kind, lane, child_lane, body, author, pinned)
), judged as (
    select f.*, c.parent_job_id,
           -- By the snapshot of all that is judged here. The unique index alone would let an issue pass whose job ends
           -- while this runs: it looks at what is there now, and the rest at what was there before.
           exists (select from job j
                    where j.forge = %(forge)s and lower(j.host) = lower(%(host)s)
                      and lower(j.owner) = lower(%(owner)s) and lower(j.repo) = lower(%(repo)s)
                      and j.number = f.number and j.state in ('pending', 'claimed', 'running')) as live,
           exists (select from forge_write w
                    where w.forge = %(forge)s and lower(w.host) = lower(%(host)s)
                      and lower(w.owner) = lower(%(owner)s) and lower(w.repo) = lower(%(repo)s)
                      and w.number = f.number and w.state = 'waiting') as write_waiting,
           exists (select from forge_write w
                    where w.forge = %(forge)s and lower(w.host) = lower(%(host)s)
                      and lower(w.owner) = lower(%(owner)s) and lower(w.repo) = lower(%(repo)s)
                      and w.number = f.number and w.state = 'refused' and w.op = 'remove_label') as write_refused,
           exists (select from job j
                    where j.forge = %(forge)s and lower(j.host) = lower(%(host)s)
                      and lower(j.owner) = lower(%(owner)s) and lower(j.repo) = lower(%(repo)s)
                      and j.number = f.number and j.finished_at is not null
                      and (j.finished_at >= %(listed_at)s
                           or exists (select from forge_write w
                                       where w.job_id = j.id and w.done_at >= %(listed_at)s))) as stale,
           f.kind = 'discover' and exists (
               select from job j
                where j.forge = %(forge)s and lower(j.host) = lower(%(host)s)
                  and lower(j.owner) = lower(%(owner)s) and lower(j.repo) = lower(%(repo)s)
                  and j.number = f.number and j.finished_at is not null
                  and j.kind = 'discover' and j.state = 'delivered'
                  and j.finished_at > tireless_now() - %(cooldown)s::interval) as cooling,
           exists (select from refused_label r
                    where r.repo_id = %(repo_id)s and r.number = f.number) as not_entitled
      from found f
      left join child_issue c
        on c.forge = %(forge)s and lower(c.host) = lower(%(host)s) and lower(c.owner) = lower(%(owner)s)
       and lower(c.repo) = lower(%(repo)s) and c.number = f.number
), added as (
    insert into job (id, repo_id, forge, host, owner, repo, number, title, kind, lane, parent_job_id, max_attempts,
                     lane_pinned, run_at, created_at, updated_at)
    select id, %(repo_id)s, %(forge)s, %(host)s, %(owner)s, %(repo)s, number, title, kind,
           case when parent_job_id is null then lane else child_lane end,
           parent_job_id, %(max_attempts)s, pinned, at, at, at
      from judged
      cross join moment
     where not (live or write_waiting or write_refused or stale or cooling or not_entitled)
     order by number
        on conflict (lower(owner), lower(repo), number, lower(host), forge)
                 where state in ('pending', 'claimed', 'running') do nothing
    returning id, number, lane
), said as (
    insert into job_text (job_id, title, body, author, seen_at)
    select added.id, judged.title, judged.body, judged.author, moment.at
      from added
      join judged on judged.number = added.number
      cross join moment
), noted as (
    insert into job_event (job_id, at, kind, actor, detail)
    select id, at, 'enqueued', %(actor)s, jsonb_build_object('lane', lane)
      from added
      cross join moment
), shown as (
    insert into forge_write (job_id, forge, host, owner, repo, number, op, payload, next_try_at, created_at)
    select id, %(forge)s, %(host)s, %(owner)s, %(repo)s, number, 'state_label', %(state_write)s::jsonb, at, at
      from added
      cross join moment
     where %(state_write)s::jsonb is not null
), told as (
    select count(pg_notify('tireless_lane_' || lane, '')) from (select distinct lane from added) as lanes
)
select judged.number, added.id as job_id,
       case when added.id is not null then 'enqueued'
            when write_waiting then 'write_waiting'
            when write_refused then 'write_refused'
            when stale then 'stale'
            when cooling then 'cooling'
            when not_entitled then 'not_entitled'
            else 'live' end as verdict
  from judged
  left join added on added.number = judged.number
  cross join told
