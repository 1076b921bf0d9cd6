insert into schema_migration (version, name, checksum, breaking)
values (%(version)s, %(name)s, %(checksum)s, %(breaking)s)
