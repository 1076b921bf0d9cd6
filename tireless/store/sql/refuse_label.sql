insert into refused_label (repo_id, number, labelling, refused_at)
values (%(repo_id)s, %(number)s, %(labelling)s, tireless_now())
    on conflict (repo_id, number)
    do update set labelling = excluded.labelling, refused_at = excluded.refused_at, seen_update = null
