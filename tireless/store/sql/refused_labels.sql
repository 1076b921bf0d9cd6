select number, labelling, refused_at, seen_update from refused_label where repo_id = %(repo_id)s
