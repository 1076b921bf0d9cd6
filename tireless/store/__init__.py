"""The thin SQL layer: the only place with SQL in it.

A query is a `.sql` file under store/sql with named parameters, so that it can be read, explained and tested as
SQL. The functions around them take a connection first and commit nothing themselves: on an autocommit
connection (store.connection opens no other kind) each is one statement and so one transaction; who needs
several together wraps them in `with conn.transaction():`. No function leaves a transaction open.

    connection   opening connections, telling an outage from a fault, retrying through one
    queries      store/sql/NAME.sql by name
    statements   what a connection keeps of its queries, and how they are executed
    migrate      schema/NNNN_name.sql, in order, once
    intake       what labels make of rows: enqueue, new lanes for live jobs
    claims       claim, transitions under the fence, renewal, sweep
    jobs         as all others see them: find, read, cancel, forget
    lanes        caps, pauses, holds
    repos        tracked repositories and their polls
    budgets      what a day has cost
    status       what the status page shows
    writes       the outbox to the forges
    runs         agent runs and what they used
    workers      who is there
    listen       LISTEN, its self-check, and the fall back to polling
"""
