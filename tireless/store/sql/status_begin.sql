-- A page is one snapshot, writes nothing, and is over soon: who looks must not get in the way of who works.
set transaction isolation level repeatable read, read only;
set local statement_timeout = '2s';
set local lock_timeout = '1s';
