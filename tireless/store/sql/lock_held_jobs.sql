-- Jobs before slots, as everybody locks them.
select id from job where claimed_lane = %(lane)s and state in ('claimed', 'running') order by id for no key update
