select * from schema_migration order by version
