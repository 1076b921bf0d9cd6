-- The opt-in label that the forge would not let us take off is off: the issue may ask again.
update forge_write
   set state = 'void', done_at = tireless_now()
 where state = 'refused' and op = 'remove_label'
   and forge = %(forge)s and lower(host) = lower(%(host)s)
   and lower(owner) = lower(%(owner)s) and lower(repo) = lower(%(repo)s)
   and number <> all(%(opted_in)s::bigint[])
