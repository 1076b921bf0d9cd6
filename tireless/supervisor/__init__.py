"""The supervisor: starts a poller and the runners of each lane, keeps them alive, and takes them down.

    boot        lock the state directory, kill what a dead supervisor of it left behind
    prepare     an errand: start the embedded Postgres if there is no URL, migrate, write lane rows, release
                the claims of this host's dead processes. 69 or 78 end the supervisor with the same code
    run         one poller, `processes` runners a lane; each one that ends is replaced
    drain       first TERM or INT, or a poller that crash-loops: runners finish what they have (TERM); the
                poller goes on meanwhile, since it sweeps for other hosts and delivers what the runners put
                in the outbox, and gets its TERM when the last runner has left. Nothing is started any more
    stop        second TERM or INT, or `drain_seconds` are over: INT to all, KILL at most 2.5 s later, out
                within 5 s
    finish      an errand: stop the embedded Postgres
    QUIT        at any time: KILL to all and leave, without an errand. What is left over is the next start's

It is single-threaded and holds no connection and no pool, ever, so that a fork copies nothing that two
processes must not share. Work on the database is done by errands: forked children that do one thing, tried
again with growing delay until it is done. All code is loaded before the first fork: children
share its pages, and are of the build that the supervisor is of, whatever is installed over it meanwhile.

A child that ends. It is reaped (a loop over waitpid: one SIGCHLD may stand for many). What it left behind has
become the supervisor's, its subreaper's, own: the guard of its agent has a second to end that agent and to
record an end that it had before; then all of it is killed, until nothing is left. Then an errand releases its
claims. Then it is started again, after `restart_delay_seconds` doubled for each quick death in a row. A start
waits for the first try of the release, not for its success: a database that is down holds up nobody.
    left with 0 while it had work to do     replaced at once
    left with 0 while draining              as it should
    anything else while draining            its work was cut off: exit code 1
    `crash_loop_limit` quick deaths in a row   a runner: its lane trips, unless another runner of that lane
                                            lives well: nothing of it is started until HUP, other lanes go on.
                                            The poller: everything is drained, exit code 70
    silent for `beat_seconds`               ABRT, which dumps its stacks; KILL 3 s later
    not ready in `ready_seconds`            KILL
A supervisor that was itself stopped (SIGSTOP, a suspended machine) counts that time against nobody.

HUP reads the configuration again. A bad one leaves everything as it is, with one error line. A good one goes
to the children, which keep their pids; runners are started, or drained, to fit; tripped lanes get another
try; an errand brings the lane rows up to date. USR1 logs one line a child.

Ready (to systemd) is when the poller and every runner of every lane that has not tripped are.

A package, where the design has a module: the loop, the fleet, errands, restarts and the log lines change for
reasons of their own.

Exit codes: 0 drained; 1 stopped with work cut off; 64 bad command line, or another supervisor has the state
directory; 69 no database; 70 crash loop; 78 configuration, or a schema from a newer program.
"""

from tireless.supervisor.cli import main
from tireless.supervisor.errands import Errands
from tireless.supervisor.loop import Supervisor

__all__ = ["Errands", "Supervisor", "main"]
