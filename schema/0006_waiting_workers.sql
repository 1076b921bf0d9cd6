-- breaking: no
-- Why a worker takes no work, where that is its own host's matter and nobody else's: a runner whose agent's program is
-- not there. Null: it takes what there is. An older program does not know this column, and its workers wait for nothing.
alter table worker add column waits_for text;
