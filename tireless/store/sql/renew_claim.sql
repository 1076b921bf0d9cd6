-- The heartbeat. It touches no indexed column and notifies nobody, so it stays a HOT update.
update job
   set claim_expires_at = tireless_now() + %(lease)s::interval
 where id = %(job)s and claimed_by = %(worker)s and claim_seq = %(seq)s
returning claim_expires_at, cancel_requested_at, cancel_reason
