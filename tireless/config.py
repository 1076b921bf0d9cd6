"""tireless.toml and the environment -> one frozen, validated `Config`.

Every key has a default that works; etc/tireless.toml lists them all (a test holds it to this module). An
unknown key or a bad value is a `ConfigError` that names the file, the key, the value and the way out, for all of them
at once.
Secrets are never written in the file: `*_env` names an environment variable, `*_file` a file that holds one.
They are read when the configuration is loaded, so that a bad one is known at start and at HUP, not at night.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tireless import database_url
from tireless.entities import AgentKind, Forge, TirelessError
from tireless.labels import LabelProtocol
from tireless.redact import Redactor
from tireless.routing import RoutingTable
from tireless.tables import NOTHING, Reading, build, entry_key, shown

DEFAULT_PATHS = ("tireless.toml", "/etc/tireless/tireless.toml")


def looked_at() -> str:
    """Where a configuration is looked for, for people."""
    return ", ".join(["$TIRELESS_CONFIG", *(p if p.startswith("/") else f"./{p}" for p in DEFAULT_PATHS)])


class ConfigError(TirelessError):
    """The configuration cannot be used; the text says where and what to do, one line a fault. Exit code 78."""

    def __init__(self, text: str, faults: Sequence[str] = ()) -> None:
        super().__init__(text)
        self._faults = faults

    @property
    def in_one_line(self) -> str:
        """For a log, where the file is named once."""
        if not self._faults:
            return str(self)
        return " | ".join([str(self).splitlines()[0], *self._faults[1:]])


class Secret:
    """A value that does not show itself: not in repr, str, a traceback or a log line."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


class SandboxMode(StrEnum):
    AUTO = "auto"
    BWRAP = "bwrap"
    NONE = "none"


class Network(StrEnum):
    ON = "on"
    OFF = "off"


class ChildPolicy(StrEnum):
    """What becomes of the issues that a plan proposes."""

    OPT_IN = "opt_in"  # opted in at once, where they depend on no other child
    PROPOSE = "propose"  # a person sets the label


class CommentPolicy(StrEnum):
    """Whose comments on the issue reach the prompt."""

    NONE = "none"
    AUTHOR = "author"
    ALL = "all"


class Standing(StrEnum):
    """What somebody must be to the repository whose label starts work."""

    WRITE = "write"
    TRIAGE = "triage"  # GitHub's role: may set labels, may not push
    ANYONE = "anyone"  # whoever the forge lets set the label, an issue template included


class UnknownAsker(StrEnum):
    """What follows where the forge does not tell who set the label, or what that person may do."""

    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class DatabaseConfig:
    url: str | None = None  # none at all: an embedded Postgres under state_dir
    url_env: str | None = "TIRELESS_DATABASE_URL"
    url_file: Path | None = None
    connect_timeout_seconds: int = 5
    start_timeout_seconds: int = 60  # how long a start waits for the database before exit code 69
    postgres_version: int = 18  # of the embedded server


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """The claim's lease. A runner that cannot renew kills its agent `margin_seconds` before the lease ends."""

    seconds: float = 600.0
    renew_seconds: float = 60.0
    margin_seconds: float = 60.0
    max_attempts: int = 3
    backoff_seconds: float = 30.0  # before the second attempt; doubled for each further one, up to an hour
    host_gone_seconds: float = 3600.0  # how long a job whose workspace is on a host that is gone waits for it


@dataclass(frozen=True, slots=True)
class SupervisorConfig:
    drain_seconds: float = 3600.0  # how long a drain waits for running agents before it cuts them off
    stop_grace_seconds: float = 5.0  # from TERM to KILL, for agents and children
    beat_seconds: float = 120.0  # a child silent for longer is aborted and replaced
    ready_seconds: float = 60.0  # a child not ready by then is killed and replaced
    restart_delay_seconds: float = 1.0  # first; doubled for each quick death, up to a minute
    crash_loop_limit: int = 5  # quick deaths in a row that trip a lane
    healthy_seconds: float = 60.0  # a child that lived this long did not die quickly


@dataclass(frozen=True, slots=True)
class PollerConfig:
    interval_seconds: int = 60  # the default of `repo add`
    threads: int = 16  # polls at once, over all forges
    per_host: int = 8  # of these, with one forge that answers well; fewer with one that does not
    wake_seconds: float = 15.0  # the longest time between two looks at rows when no notification comes
    full_sweep_seconds: float = 3600.0
    keep_days: int = 90  # finished jobs, events and writes are pruned after this


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    wake_seconds: float = 15.0  # the longest time between two looks at the queue where no notifications arrive
    keep_workspace_days: float = 3.0  # of a finished job, for a look and for the next job of that issue
    workspace_disk_mb: int | None = None  # of all workspaces; above it finished ones go sooner, oldest first
    min_free_mb: int = 512  # kept free under state_dir: who leaves less is stopped, with twice that work begins
    git_timeout_seconds: float = 900.0
    verify_timeout_seconds: float = 1800.0

    @property
    def min_free_bytes(self) -> int:
        return self.min_free_mb * 1024 * 1024

    @property
    def listening_seconds(self) -> float:
        """The longest time between two looks at the queue where notifications are known to arrive."""
        return 4 * self.wake_seconds


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    mode: SandboxMode = SandboxMode.AUTO
    network: Network = Network.ON
    read_only: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    memory_mb: int | None = None
    processes: int | None = 2048
    file_mb: int | None = 4096
    user: str | None = None  # the account that agents run as without bubblewrap when tireless itself is root


@dataclass(frozen=True, slots=True)
class LaneConfig:
    """One lane on this host. `cap` is global and lives in the lane's row: it is written when the row is first
    made, and when a reload brings another value than before; tireless-ctl may change it in between."""

    enabled: bool = True
    cap: int = 2
    runners: int | None = None  # processes on this host; none: as many as `cap`
    command: tuple[str, ...] = ()  # none: the CLI's own name, found on PATH
    model: str | None = None
    max_turns: int | None = None
    max_budget_usd: float | None = None
    stall_seconds: float = 900.0  # no event for this long ends the run
    wall_seconds: float = 7200.0
    transcript_mb: int = 64
    env: Mapping[str, str] = field(default_factory=dict)  # as written
    env_from: tuple[str, ...] = ()  # names passed through from tireless's own environment: keys, base URLs
    append_prompt: str | None = None

    @property
    def processes(self) -> int:
        return 0 if not self.enabled else self.runners if self.runners is not None else self.cap


@dataclass(frozen=True, slots=True)
class GitConfig:
    author_name: str = "tireless"
    author_email: str = "tireless@localhost"
    branch_prefix: str = "tireless/issue-"


@dataclass(frozen=True, slots=True)
class DeliveryConfig:
    draft: bool = True
    plan_children: ChildPolicy = ChildPolicy.PROPOSE
    max_children: int = 20
    discover_cooldown_seconds: float = 20 * 3600.0
    proposed_label: str = "tireless/proposed"


@dataclass(frozen=True, slots=True)
class WhoConfig:
    """Whose label starts work; see tireless/who.py. tireless's own account always counts."""

    require: Standing = Standing.WRITE
    allow: tuple[str, ...] = ()  # logins that count whatever they may do
    bots: tuple[str, ...] = ()  # logins of bots that count; no other bot does
    unknown: UnknownAsker = UnknownAsker.REFUSE


@dataclass(frozen=True, slots=True)
class PromptConfig:
    comments: CommentPolicy = CommentPolicy.AUTHOR
    max_chars: int = 60_000


@dataclass(frozen=True, slots=True)
class WebConfig:
    listen: str | None = None  # "127.0.0.1:8421", "[::1]:8421"; none: no status page

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port to listen on; None for no status page. ValueError if `listen` is not HOST:PORT."""
        return _address(self.listen)


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """Deliveries of forges, each at /KIND/HOST, and signed with the secret of its [[forge]] entry."""

    listen: str | None = None  # "127.0.0.1:8422"; none: no deliveries are taken
    max_kb: int = 4096  # the largest delivery

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port to listen on; None for none. ValueError if `listen` is not HOST:PORT."""
        return _address(self.listen)


def _address(listen: str | None) -> tuple[str, int] | None:
    if listen is None:
        return None
    host, _, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    is_port = port.isascii() and port.isdigit() and int(port) <= 65535
    if not bare or (":" in bare) != bracketed or not is_port:
        raise ValueError("give HOST:PORT, such as 127.0.0.1:8421 or [::1]:8421")
    return bare, int(port)


@dataclass(frozen=True, slots=True)
class ForgeConfig:
    """One forge instance. `api_url` only where it is not the forge's usual place under https://host."""

    kind: Forge
    host: str
    api_url: str | None = None
    token_env: str | None = None
    token_file: Path | None = None
    git_user: str = "x-access-token"  # the user name that goes with the token in git's basic authentication
    token: Secret | None = None  # read from token_env or token_file; not a key of the file
    ca_file: Path | None = None
    webhook_secret_env: str | None = None
    webhook_secret_file: Path | None = None
    webhook_secret: Secret | None = None  # read from one of these; not a key of the file

    @property
    def base_url(self) -> str:
        """Where the API is, without a slash at the end."""
        if self.api_url is not None:
            return self.api_url.rstrip("/")
        if self.kind is Forge.GITHUB:
            return "https://api.github.com" if self.host == "github.com" else f"https://{self.host}/api/v3"
        return f"https://{self.host}/api/v1"


@dataclass(frozen=True, slots=True)
class Config:
    path: Path | None = None  # where it was read; not a key of the file
    host: str = field(default_factory=socket.gethostname)  # this machine's name among those on one database
    state_dir: Path = Path("/var/lib/tireless")
    log_level: str = "info"
    database: DatabaseConfig = field(default_factory=DatabaseConfig)
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    supervisor: SupervisorConfig = field(default_factory=SupervisorConfig)
    poller: PollerConfig = field(default_factory=PollerConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    labels: LabelProtocol = field(default_factory=LabelProtocol)
    routing: RoutingTable = field(default_factory=RoutingTable)
    git: GitConfig = field(default_factory=GitConfig)
    delivery: DeliveryConfig = field(default_factory=DeliveryConfig)
    who: WhoConfig = field(default_factory=WhoConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    web: WebConfig = field(default_factory=WebConfig)
    webhook: WebhookConfig = field(default_factory=WebhookConfig)
    lane: Mapping[AgentKind, LaneConfig] = field(
        default_factory=lambda: {kind: LaneConfig() for kind in AgentKind}
    )
    forge: tuple[ForgeConfig, ...] = ()

    def forge_for(self, forge: Forge, host: str) -> ForgeConfig:
        for entry in self.forge:
            if entry.kind is forge and entry.host.casefold() == host.casefold():
                return entry
        where = self.path or "the configuration"
        raise ConfigError(
            f'{where} has no [[forge]] entry with kind = "{forge}" and host = "{host}"; add one with its token'
        )

    def secrets(self) -> tuple[str, ...]:
        """Every secret value that this configuration holds, for the redactor."""
        kept = [secret for entry in self.forge for secret in (entry.token, entry.webhook_secret)]
        found = [secret.reveal() for secret in kept if secret is not None]
        password = database_password(self.database.url) if self.database.url else None
        if self.database.url and password:
            found.append(self.database.url)
            # Alone it is seen nowhere; a short one ("tireless") would mask ordinary words all over.
            found += [form for form in (password, unquote(password)) if len(form) >= _LONG]
        return tuple(found)


_LONG = 12  # characters
_PASSWORD = re.compile(
    r"//[^/@\s]*?:(?P<user>[^/\s]*)@"  # of a URL, as it is written there
    r"|(?:^|[?&\s])password\s*=\s*(?:'(?P<quoted>[^']*)'|(?P<plain>[^&\s']+))"  # a parameter, of a URL or alone
)


def database_password(url: str) -> str | None:
    """The password in a database's URL or list of parameters, as it is written there; None if it holds none."""
    found = (match["user"] or match["quoted"] or match["plain"] for match in _PASSWORD.finditer(url))
    return next(filter(None, found), None)


_NOT_KEYS = {(Config, "path"), (ForgeConfig, "token"), (ForgeConfig, "webhook_secret")}
_FORGE_DEFAULT_GIT_USER = {Forge.GITHUB: "x-access-token"}


def load(path: Path | None, environ: Mapping[str, str], *, tokens: bool = True) -> Config:
    """Read and check the configuration. ConfigError names file, key, value and the way out, one line a fault: all
    that one reading can find, the secrets and the database's URL included.

    Without `path`: $TIRELESS_CONFIG, then ./tireless.toml, then /etc/tireless/tireless.toml, then defaults.
    Without `tokens` those of the forges are left unread: most of tireless-ctl has no use for them.
    """
    found = _find(path, environ)
    table: dict[str, Any] = {}
    if found is not None:
        try:
            table = tomllib.loads(found.read_text("utf-8"))
        except OSError as e:
            raise ConfigError(f"{found}: cannot be read: {e.strerror}") from e
        except (
            ValueError,
            RecursionError,
        ) as e:  # TOMLDecodeError and UnicodeDecodeError are of the first kind
            raise ConfigError(f"{found}: is not TOML: {e}") from e
    reading = Reading(_NOT_KEYS)
    config = _parse(table, found, reading)
    if tokens:
        entries = _forges(reading).items()
        config = replace(config, forge=tuple(_with_secrets(e, key, environ, reading) for key, e in entries))
    config = replace(config, database=_with_url(config.database, environ, reading))
    _judge(found, reading)
    return config


def parse(table: Mapping[str, Any], path: Path | None) -> Config:
    """The table of a file -> Config, without reading any secret; pure. ConfigError as `load` has it."""
    reading = Reading(_NOT_KEYS)
    config = _parse(table, path, reading)
    _judge(path, reading)
    return config


def _parse(table: Mapping[str, Any], path: Path | None, reading: Reading) -> Config:
    built = build(Config, table, reading)
    config: Config = Config() if built is NOTHING else built
    every_lane = {kind: config.lane.get(kind, LaneConfig()) for kind in AgentKind}
    config = replace(config, path=path, lane=every_lane)
    _check(config, reading)
    return config


def _judge(path: Path | None, reading: Reading) -> None:
    if reading.faults:
        where = path if path is not None else "configuration"
        raise ConfigError("\n".join(f"{where}: {text}" for text in reading.faults), reading.faults)


def _find(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path
    if environ.get("TIRELESS_CONFIG"):
        return Path(environ["TIRELESS_CONFIG"])
    return next((Path(p) for p in DEFAULT_PATHS if Path(p).is_file()), None)


_MAY_BE_ZERO = frozenset(
    {
        "backoff_seconds",
        "cap",
        "discover_cooldown_seconds",
        "drain_seconds",
        "healthy_seconds",
        "host_gone_seconds",
        "keep_workspace_days",
        "margin_seconds",
        "max_children",
        "restart_delay_seconds",
        "runners",
        "start_timeout_seconds",
        "stop_grace_seconds",
    }
)


def _numbers(part: Any, prefix: str) -> Iterator[tuple[str, int | float]]:
    """Every number of the configuration with its key."""
    for f in fields(part):
        value = getattr(part, f.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{f.name}", value
        elif is_dataclass(value):
            yield from _numbers(value, f"{prefix}{f.name}.")
        elif isinstance(value, Mapping):
            for kind, entry in value.items():
                if is_dataclass(entry):
                    yield from _numbers(entry, f"{prefix}{f.name}.{kind}.")


def _check(config: Config, reading: Reading) -> None:
    """The rules between keys, and the ranges. Each message says what to set."""
    _check_numbers(config, reading)
    _check_values(config, reading)
    _check_lanes(config, reading)
    _check_listeners(config, reading)
    _check_forges(reading)
    _check_variables(config, reading)


_LARGEST = 2**31 - 1  # which every column holds, and no interval is longer


def _check_numbers(config: Config, reading: Reading) -> None:
    demand = reading.demand
    for key, number in _numbers(config, ""):
        demand(abs(number) <= _LARGEST, key, number, f"give a number up to {_LARGEST}")  # which nan is not
        if key.rpartition(".")[2] in _MAY_BE_ZERO:
            demand(number >= 0, key, number, "set it to 0 or more")
        else:
            demand(number > 0, key, number, "set it above 0")
    lease = config.lease
    if reading.good("lease.renew_seconds", "lease.margin_seconds", "lease.seconds"):
        demand(
            lease.renew_seconds + lease.margin_seconds < lease.seconds,
            "lease.renew_seconds",
            lease.renew_seconds,
            f"with lease.margin_seconds {lease.margin_seconds} it must stay below lease.seconds {lease.seconds}",
        )


def _check_values(config: Config, reading: Reading) -> None:
    demand = reading.demand
    demand(
        config.log_level in ("debug", "info", "warning", "error"),
        "log_level",
        config.log_level,
        "set it to debug, info, warning or error",
    )
    demand(config.state_dir.is_absolute(), "state_dir", str(config.state_dir), "give an absolute path")
    demand(bool(config.host.strip()), "host", config.host, "give this machine a name of its own")
    demand(
        config.poller.interval_seconds >= 5,
        "poller.interval_seconds",
        config.poller.interval_seconds,
        "set it to 5 or more",
    )
    demand(
        config.database.postgres_version in (16, 18),
        "database.postgres_version",
        config.database.postgres_version,
        "the embedded server comes as 16 and 18",
    )


def _check_lanes(config: Config, reading: Reading) -> None:
    demand = reading.demand
    for kind, lane in config.lane.items():
        demand(lane.cap <= 1000, f"lane.{kind}.cap", lane.cap, "set it between 0 and 1000")
        demand(
            lane.runners is None or lane.runners <= 200,
            f"lane.{kind}.runners",
            lane.runners,
            "set it between 0 and 200",
        )


def _check_listeners(config: Config, reading: Reading) -> None:
    demand = reading.demand
    for key, listener in (("web", config.web), ("webhook", config.webhook)):
        try:
            _ = listener.address
        except ValueError as e:
            demand(False, f"{key}.listen", listener.listen, str(e))
    demand(
        1 <= config.webhook.max_kb <= 25_600,
        "webhook.max_kb",
        config.webhook.max_kb,
        "set it between 1 and 25600",
    )


def _forges(reading: Reading) -> dict[str, ForgeConfig]:
    return {key: entry for key, entry in reading.entries.items() if isinstance(entry, ForgeConfig)}


_A_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_PLAINLY_A_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def _check_variables(config: Config, reading: Reading) -> None:
    """What stands where a variable's name belongs may be the secret itself, so it is not quoted."""
    named = [("database.url_env", config.database.url_env)]
    for key, entry in _forges(reading).items():
        named += [
            (f"{key}.token_env", entry.token_env),
            (f"{key}.webhook_secret_env", entry.webhook_secret_env),
        ]
    for kind, lane in config.lane.items():
        named += [(f"lane.{kind}.env_from", name) for name in lane.env_from]
    for key, name in named:
        if name is not None and _A_VARIABLE.fullmatch(name) is None:
            reading.fault(
                key,
                f"{key} names something that no environment variable is called; give a variable's name alone",
            )


def variable_shown(name: str) -> str:
    """An environment variable's name, for people; not if it may be a secret that was put in its place."""
    if _PLAINLY_A_VARIABLE.fullmatch(name) is not None and Redactor()(name) == name:
        return f"${name}"
    return (
        "a variable (not shown, since it may be the secret itself; what belongs there is its variable's name)"
    )


def _check_forges(reading: Reading) -> None:
    seen: set[tuple[Forge, str]] = set()
    for key, entry in _forges(reading).items():
        identity = (entry.kind, entry.host.casefold())
        place = key.partition(" ")[0]
        twice = identity in seen and reading.good(f"{key}.kind")
        reading.demand(not twice, f"{place}.host", entry.host, "this forge instance is listed twice")
        seen.add(identity)
        reading.demand(
            bool(entry.host) and "/" not in entry.host and "@" not in entry.host,
            f"{place}.host",
            entry.host,
            "give a host name, with a port if it has one, without a scheme or path",
        )
        if entry.api_url is not None:
            reading.demand(
                entry.api_url.startswith(("https://", "http://")) and "@" not in entry.api_url,
                f"{key}.api_url",
                entry.api_url,
                "give a URL with http or https and no user in it",
            )
        if reading.good(f"{key}.token_env", f"{key}.token_file"):
            rule = "name its token with exactly one of token_env and token_file"
            if entry.token_env is None and entry.token_file is None:
                reading.fault(f"{key}.token_env", f"{key} has neither token_env nor token_file; {rule}")
            elif entry.token_env is not None and entry.token_file is not None:
                reading.fault(f"{key}.token_env", f"{key} has both token_env and token_file; {rule}")
        if entry.webhook_secret_env is not None and entry.webhook_secret_file is not None:
            reading.fault(
                f"{key}.webhook_secret_env",
                f"{key} has both webhook_secret_env and webhook_secret_file; name its webhook's secret with one of "
                "them",
            )


def with_token(config: Config, entry: ForgeConfig, environ: Mapping[str, str]) -> ForgeConfig:
    """The entry with its token, and its webhook's secret, read. ConfigError if one cannot be had."""
    reading = Reading()
    made = _with_secrets(entry, entry_key("forge", config.forge.index(entry), entry), environ, reading)
    _judge(config.path, reading)
    return made


def _with_secrets(entry: ForgeConfig, key: str, environ: Mapping[str, str], reading: Reading) -> ForgeConfig:
    """The entry with what of its secrets can be had; where one is, and that it is one, has been checked."""
    token = _read_secret(environ, entry.token_env, entry.token_file, f"{key}.token", reading)
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        source = f"_env ${entry.token_env}" if entry.token_env is not None else f"_file {entry.token_file}"
        reading.fault(
            f"{key}.token",
            f"{key}.token{source} does not hold just a token: there is white space or another character in it that no "
            "token has; give the token alone, on one line",
        )
    hook = _read_secret(
        environ, entry.webhook_secret_env, entry.webhook_secret_file, f"{key}.webhook_secret", reading
    )
    return replace(
        entry,
        token=Secret(token) if token is not None else None,
        webhook_secret=Secret(hook) if hook is not None else None,
    )


def token_source(entry: ForgeConfig) -> str:
    """Where a forge's token is read from, for people; never the token."""
    if entry.token_env is not None:
        return f"the environment variable {entry.token_env}"
    return f"the file {entry.token_file}"


def _with_url(database: DatabaseConfig, environ: Mapping[str, str], reading: Reading) -> DatabaseConfig:
    """With the URL from wherever it is, if it can be used as one."""
    url, key = database.url, "database.url"
    if url is None and database.url_file is not None:
        url = _read_secret(environ, None, database.url_file, "database.url", reading)
        key = f"database.url (from database.url_file {shown(str(database.url_file))[1:-1]})"
    elif url is None and database.url_env is not None:
        url = environ.get(database.url_env) or None
        key = f"database.url (from ${database.url_env})"
    fault = database_url.fault(url) if url is not None else None
    if fault is not None:
        reading.fault("database.url", f"{key} cannot be used: {fault}")
    return replace(database, url=url)


def _read_secret(
    environ: Mapping[str, str], env: str | None, file: Path | None, key: str, reading: Reading
) -> str | None:
    """What the variable or the file holds; None if neither is named, or, with a fault, if it holds nothing."""
    if env is not None:
        value = environ.get(env, "").strip()
        if not value:
            reading.fault(f"{key}_env", f"{key}_env names {variable_shown(env)}, which is not set; export it")
        return value or None
    if file is None:
        return None
    try:
        value = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        reading.fault(f"{key}_file", f"{key}_file {shown(str(file))[1:-1]} cannot be read: {why}")
        return None
    if not value:
        reading.fault(f"{key}_file", f"{key}_file {file} is empty")
    return value or None


def agent_environment(lane: LaneConfig, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the lane's configuration names for its agent, and nothing else (AGENT_CLIS.md, rule 8)."""
    source = os.environ if environ is None else environ
    passed = {name: source[name] for name in lane.env_from if name in source}
    return {**passed, **lane.env}


def unset_variables(lane: LaneConfig, environ: Mapping[str, str] | None = None) -> list[str]:
    """The names under env_from that stand for nothing: its agent goes without what they should hold."""
    source = os.environ if environ is None else environ
    return [name for name in lane.env_from if name not in lane.env and not source.get(name)]
