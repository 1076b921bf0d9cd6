-- What a worker holds and does not work: it got no answer to its claim.
select * from job where claimed_by = %(worker)s and state = 'claimed' limit 1
