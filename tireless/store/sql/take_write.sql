-- In order per issue: only the first waiting write of an issue may be taken. The lock is a lease in the row,
-- since no transaction stays open while a forge is asked; each write is idempotent, so a lease that ran
-- out costs at most a repetition that changes nothing.
with next as (
    select w.id
      from forge_write w
     where w.state = 'waiting' and w.next_try_at <= tireless_now()
       and (w.locked_until is null or w.locked_until < tireless_now())
       and (%(job)s::uuid is null or w.job_id = %(job)s)
       and not exists (
           select from forge_write e
            where e.state = 'waiting' and e.forge = w.forge and lower(e.host) = lower(w.host)
              and lower(e.owner) = lower(w.owner) and lower(e.repo) = lower(w.repo)
              and e.number = w.number and e.id < w.id)
     order by w.next_try_at, w.id
     limit 1
       for update skip locked
)
update forge_write w
   set locked_by = %(worker)s, locked_until = tireless_now() + interval '2 minutes', attempts = w.attempts + 1
  from next
 where w.id = next.id
returning w.*
