-- A statement that its client has left goes on in the server, and could still claim or finish a job for a process
-- that is dead. Waits until each session is gone, five seconds at most.
select pg_terminate_backend(pid, 5000)
  from pg_stat_activity
 where datname = current_database() and usename = current_user and pid <> pg_backend_pid()
   and starts_with(application_name, %(prefix)s)
