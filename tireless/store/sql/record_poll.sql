-- The end of a poll, good or bad. A repository keeps its place in the interval (a hash of its name), so that a
-- restart is no stampede; one that fails waits longer each time, up to an hour, or as long as the forge said.
-- One that was asked for meanwhile is due as before: taking it, at listed_at, had moved it on by three minutes. The
-- clock is no help here: who asks may do so after this transaction has begun.
update tracked_repo
   set last_polled_at = tireless_now(),
       last_full_sweep_at = case when %(full)s then tireless_now() else last_full_sweep_at end,
       last_etag = case when %(store_validators)s then %(etag)s else last_etag end,
       etag_key = case when %(store_validators)s then %(etag_key)s else etag_key end,
       body_hash = case when %(store_validators)s then %(body_hash)s else body_hash end,
       poll_result = %(result)s,
       poll_detail = %(detail)s,
       poll_failures = case when %(failed)s then poll_failures + 1 else 0 end,
       next_poll_at = case
           when next_poll_at < %(listed_at)s::timestamptz + interval '3 minutes'
               then next_poll_at
           when %(wait)s::float8 is not null
               then tireless_now() + greatest(%(wait)s, 1) * interval '1 second'
           when %(failed)s
               then tireless_now() + least(3600.0, interval_seconds * power(2, least(poll_failures, 10)))
                                     * (1 + random() / 10) * interval '1 second'
           else to_timestamp(
               (floor(extract(epoch from tireless_now()) / interval_seconds) + 1) * interval_seconds
               + (hashtext(forge || lower(host) || lower(owner) || lower(repo)) & 1023) / 1024.0 * interval_seconds
               - case when extract(epoch from tireless_now())
                           - floor(extract(epoch from tireless_now()) / interval_seconds) * interval_seconds
                           < (hashtext(forge || lower(host) || lower(owner) || lower(repo)) & 1023)
                             / 1024.0 * interval_seconds
                      then interval_seconds else 0 end)
       end
 where id = %(id)s
returning next_poll_at
