select state, count(*) as n from forge_write where state in ('waiting', 'refused') group by state
