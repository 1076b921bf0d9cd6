create table if not exists schema_migration (
    version    integer primary key,
    name       text not null,
    checksum   text not null,
    breaking   boolean not null,
    applied_at timestamptz not null default now()
)
