-- breaking: no
-- A budget that is raised lets its lane go at once, so a hold says whether a budget made it. (Of a repository every hold
-- is a budget's.)
alter table lane
    -- The end of the budget's hold: the hold in force is the budget's if it ends just then. An older program that holds
    -- the lane for longer does not know this column.
    add column budget_until timestamptz,
    -- Another hold, which the budget's outlasts: it is in force once the budget's is lifted.
    add column other_until timestamptz,
    add column other_reason text,
    add constraint other_has_reason check ((other_until is null) = (other_reason is null));
