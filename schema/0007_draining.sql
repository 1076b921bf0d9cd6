-- breaking: no
-- A host that drains says so: a runner that finishes what it has in hand and then leaves. One of an older program does
-- not say it.
alter table worker add column draining_since timestamptz;
