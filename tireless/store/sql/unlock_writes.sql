-- What a dead drainer had in hand can be tried again now: each write is idempotent.
update forge_write
   set locked_by = null, locked_until = null
 where state = 'waiting' and locked_by = %(worker)s
