select * from tracked_repo where enabled or %(disabled_too)s order by created_at, id
