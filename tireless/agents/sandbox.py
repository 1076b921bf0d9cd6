"""What an agent can see and touch: a sandbox of bubblewrap, or none.

Behind bubblewrap the agent is uid 1000 of a user namespace of its own without capabilities, in a PID namespace
that ends with it. It sees the system read-only, its program's own installation, the mirror its clone borrows
objects from (read-only), and may write its workspace, home, temporary and report directories. tireless's
state, configuration, other jobs and a database's socket are not hidden but absent: the root is an empty
tmpfs. With the network on (it must be, for a model's API elsewhere) what listens on TCP is reachable; a
database there needs its own password.

    auto    bubblewrap if it really runs here, else as `none`, with one warning
    bwrap   bubblewrap, or an error at start
    none    no walls: as the account `sandbox.user` if tireless is root and one is set; else as tireless itself

`memory_mb` limits private writable memory (RLIMIT_DATA), not the address space: the CLIs' JavaScript engines
reserve tens of gigabytes of it that they never touch, and would not start under RLIMIT_AS.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tireless.agents.base import Places
from tireless.config import Config, ConfigError, Network, SandboxConfig, SandboxMode

log = logging.getLogger(__name__)

PROBE_SECONDS = 15.0
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/opt", "/nix/store")
# Of /etc only what programs need to find libraries, names, time and certificates. No passwords, no tokens:
# package managers' configuration may hold some; `sandbox.read_only` adds it where it is wanted.
_ETC = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "host.conf",
    "hosts",
    "inputrc",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "perl",
    "pki",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "resolv.conf",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
_UID = "1000"
_PASSWD = "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000:agent:{home}:/bin/sh\n"
_GROUP = "root:x:0:\nagent:x:1000:\n"


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]

    @classmethod
    def named(cls, name: str) -> Account:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise ConfigError(f"sandbox.user is {name!r}; this machine has no such account") from None
        if entry.pw_uid == 0:
            raise ConfigError(f"sandbox.user is {name!r}, which is root; name an account without rights")
        return cls(name, entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(name, entry.pw_gid)))

    def as_json(self) -> dict[str, Any]:
        return {"uid": self.uid, "gid": self.gid, "groups": list(self.groups)}


@dataclass(frozen=True, slots=True)
class Sandbox:
    """`bwrap` is the program's path, or None where agents run without it. `hidden` are files and directories
    that are covered wherever something that is shown holds them: state directory, configuration."""

    config: SandboxConfig
    bwrap: Path | None = None
    account: Account | None = None
    hidden: tuple[Path, ...] = ()

    @property
    def runs_as_root(self) -> bool:
        """Whether the agent itself will see uid 0."""
        return self.bwrap is None and self.account is None and os.geteuid() == 0

    @property
    def description(self) -> str:
        if self.bwrap is not None:
            return f"bubblewrap, network {self.config.network}"
        return f"none, as account {self.account.name}" if self.account else "none"

    def limits(self) -> dict[str, int]:
        """Resource limits of the agent's process tree, each process for itself, by the guard's names."""
        found = {"core": 0}
        if self.config.memory_mb is not None:
            found["data"] = self.config.memory_mb * 1024 * 1024
        if self.config.processes is not None:
            found["processes"] = self.config.processes
        if self.config.file_mb is not None:
            found["file"] = self.config.file_mb * 1024 * 1024
        return found

    def prepare(self, places: Places) -> None:
        """Make the job's directories, 0700, and hand them to the account that agents run as."""
        for directory in places.writable:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.account is not None:
            for directory in places.writable:
                _let_through(directory)
                _chown_tree(directory, os.geteuid(), self.account.uid, self.account.gid)
            if places.mirror is not None:
                _let_through(places.mirror)
                _let_read(places.mirror)

    def reclaim(self, places: Places) -> None:
        """After a run: what the account owns in the job's directories is ours again. Call it before git
        looks at the workspace; without an account it does nothing."""
        if self.account is not None:
            for directory in places.writable:
                _chown_tree(directory, self.account.uid, os.geteuid(), os.getegid())

    def wrap(
        self, argv: Sequence[str], programs: Sequence[Path], places: Places, run_dir: Path
    ) -> tuple[str, ...]:
        """The command line that runs `argv` inside. The environment is given to it as it is: by the process,
        never by an argument, since it holds keys."""
        if self.bwrap is None:
            return tuple(argv)
        etc = run_dir / "etc"
        etc.mkdir(mode=0o700, exist_ok=True)
        (etc / "passwd").write_text(_PASSWD.format(home=places.home))
        (etc / "group").write_text(_GROUP)
        shown = [*(p for program in programs for p in installation(program)), *self.config.read_only]
        return (
            str(self.bwrap),
            *_namespaces(self.config.network),
            *_system(),
            *_bind("--ro-bind", [etc / "passwd"], Path("/etc/passwd")),
            *_bind("--ro-bind", [etc / "group"], Path("/etc/group")),
            *_bind("--ro-bind", shown),
            *self._masks(shown),
            *(_bind("--ro-bind", [places.mirror]) if places.mirror is not None else ()),
            *_bind("--bind", [*places.writable, *self.config.writable]),
            "--chdir",
            str(places.workspace),
            "--",
            *argv,
        )

    def obstacle(self, programs: Sequence[Path]) -> str | None:
        """Why an agent in here cannot run the first of these files, or read the others, though tireless can. None if
        it can, or if that cannot be told from here."""
        if self.bwrap is not None:
            shown = [*(p for program in programs for p in installation(program)), *self.config.read_only]
            for cover, file in itertools.product(self._covered(shown), programs):
                if file.is_relative_to(cover) or Path(os.path.realpath(file)).is_relative_to(cover):
                    return f"{file} lies in {cover}, which agents cannot see"
        elif self.account is not None:
            for file in programs:
                need = '-x "$0"' if file == programs[0] else '-r "$0" -o -x "$0"'
                if not _may(self.account, need, file):
                    return f"the account {self.account.name} (sandbox.user) may not use {file}"
        return None

    def _covered(self, shown: Sequence[Path]) -> list[Path]:
        """What must not be seen, where a shown directory happens to hold it; elsewhere it is absent."""
        return [p for p in self.hidden if _is_system(p) or any(p.is_relative_to(s) for s in shown)]

    def _masks(self, shown: Sequence[Path]) -> list[str]:
        """The words that cover it."""
        words: list[str] = []
        for path in self._covered(shown):
            if path.is_dir():
                words += ["--tmpfs", str(path)]
            elif path.exists():
                words += ["--ro-bind", "/dev/null", str(path)]
        return words


def probe(config: SandboxConfig, hidden: Sequence[Path] = ()) -> Sandbox:
    """Find out once, at start, what works here. ConfigError if the configuration asks for more than that."""
    for key in ("read_only", "writable"):
        for path in getattr(config, key):
            if not path.is_absolute() or not path.exists():
                raise ConfigError(f"sandbox.{key} names {path}, which is not an absolute path of this machine")
    if config.mode is not SandboxMode.NONE:
        program = shutil.which("bwrap")
        problem = "bwrap is not installed" if program is None else _try(Path(program), config)
        if problem is None and program is not None:
            return Sandbox(config, bwrap=Path(program), hidden=tuple(Path(os.path.abspath(h)) for h in hidden))
        if config.mode is SandboxMode.BWRAP:
            raise ConfigError(
                f'sandbox.mode is "bwrap", but bubblewrap does not work here: {problem}; install it, allow '
                'user namespaces, or set "none"'
            )
        log.warning("no sandbox: agents see what tireless sees reason=%r", problem)
    account = Account.named(config.user) if config.user is not None and os.geteuid() == 0 else None
    if account is None and os.geteuid() == 0:
        log.warning("agents run as root: set sandbox.user to an account without rights, or install bubblewrap")
    return Sandbox(config, account=account)


def hidden_paths(config: Config) -> list[Path]:
    """What must not be there for an agent even where a shown directory happens to hold it."""
    files = [f.token_file for f in config.forge if f.token_file is not None]
    return [p for p in (config.state_dir, config.path, config.database.url_file, *files) if p is not None]


def _try(program: Path, config: SandboxConfig) -> str | None:
    """Run it for real, with the namespaces that an agent gets. None if that works, else what it said."""
    argv = [str(program), *_namespaces(config.network), *_system(), "--", "/bin/sh", "-c", "exit 0"]
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=PROBE_SECONDS, stdin=subprocess.DEVNULL, env={"PATH": "/bin"}
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    if done.returncode == 0:
        return None
    return done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"


def _namespaces(network: Network) -> list[str]:
    words = ["--unshare-user", "--uid", _UID, "--gid", _UID, "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    return [*words, "--unshare-net"] if network is Network.OFF else words


def _system() -> list[str]:
    words = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/var/tmp"]
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            words += ["--ro-bind", name, name]
    for name in _ETC:
        path = Path("/etc") / name
        if path.exists():
            # By its real place: resolv.conf is often a link to a file under /run, which is not there inside.
            words += ["--ro-bind", str(path.resolve()), str(path)]
    return words


def _is_system(path: Path) -> bool:
    """Whether `path` lies below a directory of the system that every sandbox shows."""
    return any(path.is_relative_to(Path(name).resolve()) for name in _SYSTEM)


def _bind(option: str, paths: Sequence[Path], at: Path | None = None) -> list[str]:
    words: list[str] = []
    for path in dict.fromkeys(paths):
        words += [option, str(path), str(at or path)]
    return words


def installation(program: Path) -> list[Path]:
    """What a program needs to be readable: its place, that of what it links to, and what lies beside it.

    Each step of the chain of links gives its own directory. A file below node_modules brings the whole of
    that; one in a `bin` directory brings the `lib` beside it (a Python, a Node), and a virtual environment's
    pyvenv.cfg. System directories are there already. Nothing else of a home directory is shown.
    """
    found: list[Path] = []
    for step in _links(program):
        if _is_system(step):
            continue
        parts = step.parts
        if "node_modules" in parts:
            found.append(Path(*parts[: parts.index("node_modules") + 1]))
            continue
        found.append(step if _is_broad(step.parent) else step.parent)
        if step.parent.name == "bin":
            beside = (step.parent.parent / name for name in ("lib", "lib64", "pyvenv.cfg"))
            found.extend(path for path in beside if path.exists())
    return list(dict.fromkeys(found))


def _links(program: Path) -> list[Path]:
    """The path, and each place that a link on the way leads to."""
    steps = [Path(os.path.abspath(program))]
    while len(steps) < 20 and steps[-1].is_symlink():
        steps.append(Path(os.path.normpath(steps[-1].parent / os.readlink(steps[-1]))))
    real = Path(os.path.realpath(program))
    return steps if real in steps else [*steps, real]


def _is_broad(directory: Path) -> bool:
    """A directory that is too much to show for one program's sake."""
    return directory in (Path("/"), Path("/tmp"), Path("/var"), Path("/home"), Path.home(), Path("/etc"))


def _may(account: Account, need: str, file: Path) -> bool:
    """What test(1) says as that account, of the file as `$0`: the kernel knows of all that counts. True where it cannot
    be asked."""
    try:
        asked = subprocess.run(
            ["/bin/sh", "-c", f"test {need}", str(file)],
            stdin=subprocess.DEVNULL,
            env={},
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return True
    return asked.returncode != 1


def _chown_tree(root: Path, of: int, uid: int, gid: int) -> None:
    """Give what belongs to `of` below `root` to somebody else. The tree may be hostile: no link is followed,
    and a file with a second name is left alone, since that may lie anywhere."""
    for _, directories, files, fd in os.fwalk(root, follow_symlinks=False):
        for name in [*directories, *files]:
            with contextlib.suppress(FileNotFoundError):
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if info.st_uid == of and (stat.S_ISDIR(info.st_mode) or info.st_nlink == 1):
                    os.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
    if os.stat(root, follow_symlinks=False).st_uid == of:
        os.chown(root, uid, gid, follow_symlinks=False)


def _let_through(path: Path) -> None:
    """Another account may pass (not list) the directories above `path`, where they are ours to open."""
    for parent in path.parents:
        info = parent.stat()
        if info.st_uid == os.geteuid() and not info.st_mode & stat.S_IXOTH:
            parent.chmod(stat.S_IMODE(info.st_mode) | stat.S_IXOTH)


def _let_read(root: Path) -> None:
    """Another account may read the mirror: a clone borrows its objects."""
    for _, directories, files, fd in os.fwalk(root, follow_symlinks=False):
        for name in [".", *directories, *files]:
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    continue
                wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
                if mode & wanted != wanted:
                    os.chmod(name, stat.S_IMODE(mode) | wanted, dir_fd=fd)
