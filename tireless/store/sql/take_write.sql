-- The lock is a lease in the row, since no transaction stays open while a forge is asked; each write is idempotent, so
-- a lease that ran out costs at most a repetition that changes nothing.
with next as (
    select w.id
      from forge_write w
     where w.state = 'waiting' and w.next_try_at <= tireless_now()
       and (w.locked_until is null or w.locked_until < tireless_now())
       and (%(job)s::uuid is null or w.job_id = %(job)s)
-- include first_of_issue
     order by w.next_try_at, w.id
     limit 1
       for update skip locked
)
update forge_write w
   set locked_by = %(worker)s, locked_until = tireless_now() + interval '2 minutes', attempts = w.attempts + 1
  from next
 where w.id = next.id
returning w.*
