-- A statement that its client has left goes on in the server, and could still claim or finish a job for a process
-- that is dead. Waits for each session to be gone, so many milliseconds at most: a frozen one goes when it thaws.
select pg_terminate_backend(pid, %(wait)s)
  from pg_stat_activity
 where datname = current_database() and usename = current_user and pid <> pg_backend_pid()
   and starts_with(application_name, %(prefix)s)
