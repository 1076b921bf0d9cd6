-- A complete list that was read after the refusal lacks the issue: the label is off, and setting it asks anew.
delete from refused_label
 where repo_id = %(repo_id)s
   and (number = any(%(set_again)s::bigint[])
        or (number <> all(%(opted_in)s::bigint[]) and refused_at < %(listed_at)s))
