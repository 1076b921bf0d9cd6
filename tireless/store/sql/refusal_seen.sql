update refused_label set seen_update = %(updated_at)s where repo_id = %(repo_id)s and number = %(number)s
