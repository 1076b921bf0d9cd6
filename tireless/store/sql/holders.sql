select distinct claimed_by from job where state in ('claimed', 'running')
