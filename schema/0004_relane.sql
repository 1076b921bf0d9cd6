-- breaking: no
-- A job that waits in a held lane may go to another, where the operator wants that.

-- When the hold in force began.
alter table lane add column held_since timestamptz;

alter table job
    -- Whether a label of its issue names the lane. An older program does not say, and its jobs stay where they are.
    add column lane_pinned boolean not null default true,
    -- When it was moved out of a held lane. From then on the routing table has no say in its lane any more.
    add column relaned_at timestamptz;
