"""tireless.toml: every error says where and what to do, and the example in etc/ lists what there is."""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tireless import config as module
from tireless.config import (
    Config,
    ConfigError,
    DatabaseConfig,
    ForgeConfig,
    LaneConfig,
    Network,
    SandboxMode,
    Secret,
    agent_environment,
    database_password,
    load,
    parse,
    unset_variables,
)
from tireless.entities import AgentKind, Forge

EXAMPLE = Path(__file__).parents[2] / "etc" / "tireless.toml"
FORGE = '[[forge]]\nkind = "gitea"\nhost = "git.test"\ntoken_env = "TOKEN"\n'


def read(text: str) -> Config:
    return parse(tomllib.loads(text), Path("x.toml"))


# The example


def uncommented(*, examples: bool) -> str:
    """The example with its defaults in force, and its examples too if asked."""
    lines = []
    for line in EXAMPLE.read_text("utf-8").splitlines():
        if examples and line.startswith("# e.g. "):
            line = line.removeprefix("# e.g. ")
        elif re.match(r"#\w+ = ", line):
            line = line[1:]
        lines.append(line)
    return "\n".join(lines)


def keys_of_table(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = value[0]
        if isinstance(value, dict) and key != "env":
            yield from keys_of_table(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def keys_of_class(cls: Any, prefix: str = "") -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for f in fields(cls):
        if (cls, f.name) in module._NOT_KEYS:
            continue
        if is_dataclass(hints[f.name]):
            yield from keys_of_class(hints[f.name], f"{prefix}{f.name}.")
        elif f.name == "lane":
            for kind in AgentKind:
                yield from keys_of_class(LaneConfig, f"{prefix}lane.{kind}.")
        elif f.name == "forge":
            yield from keys_of_class(ForgeConfig, "forge.")
        else:
            yield f"{prefix}{f.name}"


def test_the_example_lists_exactly_the_keys_that_there_are() -> None:
    listed = list(keys_of_table(tomllib.loads(uncommented(examples=True))))
    assert sorted(listed) == sorted(keys_of_class(Config))


def test_the_examples_defaults_are_the_defaults() -> None:
    found = read(uncommented(examples=False))
    assert replace(found, path=None) == Config()
    assert replace(read(EXAMPLE.read_text("utf-8")), path=None) == Config()


def test_a_key_has_a_default_or_an_example_never_both() -> None:
    with_default = set(keys_of_table(tomllib.loads(uncommented(examples=False))))
    for cls, prefix in ((LaneConfig, "lane.claude_code."), (Config, "")):
        for f in fields(cls):
            if is_dataclass(typing.get_type_hints(cls)[f.name]) or (cls, f.name) in module._NOT_KEYS:
                continue
            if f.default is not MISSING and f.default != ():
                assert (f"{prefix}{f.name}" in with_default) == (f.default is not None), f.name


def test_the_examples_values_are_good_ones() -> None:
    text = uncommented(examples=True)
    for one_of_two in ("token", "webhook"):
        text = re.sub(rf'^\w+_file = "/etc/tireless/git.example.{one_of_two}"$', "", text, flags=re.MULTILINE)
    found = read(text)
    assert found.forge[0].token_env == "TIRELESS_GIT_EXAMPLE_TOKEN"
    assert found.routing.child is AgentKind.OPENCODE


# What can be written


def test_values_arrive_in_their_types() -> None:
    found = read(
        'state_dir = "/srv/t"\n[lease]\nseconds = 700\n'
        '[sandbox]\nmode = "none"\nnetwork = "off"\nread_only = ["~/x", "/y"]\n'
        '[lane.opencode]\ncap = 5\ncommand = ["a", "b"]\nenv = {A = "1"}\nmax_budget_usd = 2\n' + FORGE
    )
    assert found.state_dir == Path("/srv/t")
    assert found.lease.seconds == 700.0
    assert isinstance(found.lease.seconds, float)
    assert (found.sandbox.mode, found.sandbox.network) == (SandboxMode.NONE, Network.OFF)
    assert found.sandbox.read_only == (Path("~/x").expanduser(), Path("/y"))
    lane = found.lane[AgentKind.OPENCODE]
    assert (lane.cap, lane.command, lane.env, lane.max_budget_usd) == (5, ("a", "b"), {"A": "1"}, 2.0)
    assert found.lane[AgentKind.CLAUDE_CODE] == LaneConfig(), "the other lane keeps its defaults"
    assert found.forge[0].kind is Forge.GITEA


def test_processes_follow_the_cap_unless_said_otherwise() -> None:
    assert LaneConfig(cap=3).processes == 3
    assert LaneConfig(cap=3, runners=1).processes == 1
    assert LaneConfig(cap=3, enabled=False).processes == 0


@pytest.mark.parametrize(
    ("kind", "host", "url"),
    [
        (Forge.GITHUB, "github.com", "https://api.github.com"),
        (Forge.GITHUB, "ghe.test", "https://ghe.test/api/v3"),
        (Forge.GITEA, "git.test:3000", "https://git.test:3000/api/v1"),
        (Forge.FORGEJO, "git.test", "https://git.test/api/v1"),
    ],
)
def test_the_api_is_in_its_usual_place(kind: Forge, host: str, url: str) -> None:
    assert ForgeConfig(kind, host).base_url == url
    assert ForgeConfig(kind, host, api_url="http://x.test/api/").base_url == "http://x.test/api"


def test_a_forge_is_found_by_kind_and_host_whatever_its_case() -> None:
    found = read(FORGE)
    assert found.forge_for(Forge.GITEA, "GIT.test") is found.forge[0]
    with pytest.raises(
        ConfigError, match=r'x\.toml has no \[\[forge\]\] entry with kind = "github" and host = "h"'
    ):
        found.forge_for(Forge.GITHUB, "h")


# What cannot

BAD = [
    ("colour = 1", r"unknown key colour; known here: .*state_dir"),
    ("state_dirr = 1", r"unknown key state_dirr; did you mean state_dir\?"),
    ("[lease]\nsecond = 1", r"unknown key lease\.second; did you mean seconds\?"),
    ("[lane.claude_code]\ncapp = 1", r"unknown key lane\.claude_code\.capp; did you mean cap\?"),
    (
        "[lane.codex]\ncap = 1",
        r"\[lane\.codex\] is none of the lanes that there are: \[lane\.claude_code\] and \[lane\.opencode\]$",
    ),
    ("path = 'x'", r"unknown key path"),
    (
        '[[forge]]\nkind="gitea"\nhost="h"\ntoken="s3cret"',
        r"unknown key forge\[0\] \(h\)\.token; did you mean token_",
    ),
    ("lease = 3", r"lease is 3; it is a table of keys"),
    ("lane = 3", r"lane is 3; it is a table"),
    ("forge = 3", r"forge is 3; it is a list"),
    ("log_level = 3", r"log_level is 3; it is a string"),
    ("state_dir = 3", r"state_dir is 3; it is a path, as a string"),
    ('[poller]\nthreads = "4"', r"poller\.threads is '4'; it is a whole number"),
    ("[poller]\nthreads = 4.5", r"poller\.threads is 4\.5; it is a whole number"),
    ("[poller]\nthreads = true", r"poller\.threads is True; it is a whole number"),
    ('[lease]\nseconds = "x"', r"lease\.seconds is 'x'; it is a number"),
    ("[delivery]\ndraft = 1", r"delivery\.draft is 1; it is true or false"),
    ('[sandbox]\nmode = "chroot"', r"sandbox\.mode is 'chroot'; it is one of 'auto', 'bwrap', 'none'"),
    ("[sandbox]\nread_only = '/x'", r"sandbox\.read_only is '/x'; it is a list"),
    ("[sandbox]\nread_only = [1]", r"sandbox\.read_only\[0\] is 1; it is a path"),
    ("[lane.opencode]\nenv = {A = 1}", r"lane\.opencode\.env\.A is 1; it is a string"),
    ('[[forge]]\nkind = "gitea"', r"forge\[0\]\.host is missing; add it"),
    ('[[forge]]\nkind = "svn"\nhost = "h"', r"forge\[0\] \(h\)\.kind is 'svn'; it is one of 'github'"),
    ("[lease]\nseconds = 0", r"lease\.seconds is 0\.0; set it above 0"),
    ("[lease]\nmax_attempts = 0", r"lease\.max_attempts is 0; set it above 0"),
    (
        "[lease]\nrenew_seconds = 550",
        r"lease\.renew_seconds is 550\.0; with lease\.margin_seconds .* stay below",
    ),
    ("[lease]\nrenew_seconds = 0", r"lease\.renew_seconds is 0\.0; set it above 0"),
    ("[lease]\nbackoff_seconds = -1", r"lease\.backoff_seconds is -1\.0; set it to 0 or more"),
    ("[supervisor]\nbeat_seconds = 0", r"supervisor\.beat_seconds is 0\.0; set it above 0"),
    ("[supervisor]\ndrain_seconds = inf", r"supervisor\.drain_seconds is inf; give a number up to 2147483647"),
    ("[runner]\nwake_seconds = nan", r"runner\.wake_seconds is nan; give a number up to 2147483647"),
    ("[poller]\nkeep_days = 0", r"poller\.keep_days is 0; set it above 0"),
    ("[sandbox]\nprocesses = 0", r"sandbox\.processes is 0; set it above 0"),
    ('log_level = "loud"', r"log_level is 'loud'; set it to debug, info, warning or error"),
    ('state_dir = "here"', r"state_dir is 'here'; give an absolute path"),
    ('host = " "', r"host is ' '; give this machine a name of its own"),
    ("[poller]\nthreads = 0", r"poller\.threads is 0; set it"),
    ("[poller]\ninterval_seconds = 4", r"poller\.interval_seconds is 4; set it to 5 or more"),
    (
        "[database]\npostgres_version = 17",
        r"database\.postgres_version is 17; the embedded server comes as 16 and 18",
    ),
    ("[lane.opencode]\ncap = 1001", r"lane\.opencode\.cap is 1001; set it between 0 and 1000"),
    ("[lane.opencode]\ncap = -1", r"lane\.opencode\.cap is -1; set it "),
    ("[lane.opencode]\nrunners = 201", r"lane\.opencode\.runners is 201; set it between 0 and 200"),
    ("[lane.opencode]\nstall_seconds = 0", r"lane\.opencode\.stall_seconds is 0\.0; set it above 0"),
    ("[lane.opencode]\nmax_turns = 0", r"lane\.opencode\.max_turns is 0; set it above 0"),
    ('[web]\nlisten = "8421"', r"web\.listen is '8421'; give HOST:PORT"),
    ('[labels]\nplan = "tireless"', r"labels\.plan and labels\.opt_in are both 'tireless'"),
    ('[labels]\nopt_in = ""', r"labels\.opt_in is empty; give it a name"),
    (FORGE + FORGE, r"forge\[1\]\.host is 'git\.test'; this forge instance is listed twice"),
    (
        FORGE.replace("git.test", "https://git.test"),
        r"forge\[0\]\.host is 'https://git\.test'; give a host name",
    ),
    (FORGE + "nonsense = 1", r"unknown key forge\[0\] \(git\.test\)\.nonsense"),
    (FORGE + 'api_url = "ftp://x"', r"forge\[0\] \(git\.test\)\.api_url is 'ftp://x'; give a URL"),
    (
        FORGE + 'api_url = "https://u:p@x"',
        r"forge\[0\] \(git\.test\)\.api_url is .*; give a URL with http or https and no user",
    ),
    (
        FORGE.replace("token_env", "ca_file"),
        r"forge\[0\] \(git\.test\) has neither token_env nor token_file; name its token with exactly one of",
    ),
    (
        FORGE + 'token_file = "/x"',
        r"forge\[0\] \(git\.test\) has both token_env and token_file; name its token with exactly one of",
    ),
    (
        FORGE + 'webhook_secret_env = "S"\nwebhook_secret_file = "/x"',
        r"forge\[0\] \(git\.test\) has both webhook_secret_env and webhook_secret_file; name its webhook's secret with",
    ),
    ('[webhook]\nlisten = "8422"', r"webhook\.listen is '8422'; give HOST:PORT"),
    ("[webhook]\nmax_kb = 99999", r"webhook\.max_kb is 99999; set it between"),
    ("[poller]\nper_host = 0", r"poller\.per_host is 0; set it above 0"),
    ('[who]\nrequire = "read"', r"who\.require is 'read'; it is one of 'write', 'triage', 'anyone'"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_an_error_names_file_key_value_and_the_way_out(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^x\.toml: " + message):
        read(text)


@pytest.mark.parametrize(
    ("table", "key", "meant"),
    [
        ("lane.opencode", "enalbed", "enabled"),
        ("lane.opencode", "stall_second", "stall_seconds"),
        ("lane.opencode", "append-prompt", "append_prompt"),
        ("lane.opencode", "max", "max_turns or max_budget_usd"),  # goes on where the key ends
        ("poller", "interval", "interval_seconds"),
        ("lane.opencode", "timeout", None),  # not alike: no guess
        ("lane.opencode", "user", None),
        ("lane.opencode", "budget", None),
        ("poller", "sweep_interval", None),
        ("sandbox", "readable", None),
        ("git", "name", None),
        ("database", "port", None),
        ("supervisor", "seconds", None),
    ],
)
def test_only_a_near_miss_is_guessed_at(table: str, key: str, meant: str | None) -> None:
    (said,) = faults(f"[{table}]\n{key} = 1")
    rest = said.removeprefix(f"unknown key {table}.{key}; ")
    assert rest == f"did you mean {meant}?" if meant else rest.startswith("known here: ")


@pytest.mark.parametrize(
    "text",
    [
        '[[forge]]\nkind = "gitea"\nhost = "h"\ntoken = "s3cret"',
        FORGE + 'api_url = "https://u:s3cret/w0rd@x"',
        FORGE.replace("git.test", "https://u:s3cret@git.test"),
        'database = "postgresql://u:s3cret@h/d"',
        "database = \"host=h password='s3cret w0rd' user=u\"",
        'state_dir = "postgresql://u:s3cret@h/d"',
    ],
)
def test_no_error_shows_a_secret(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert "s3cret" not in str(caught.value)
    assert "w0rd" not in str(caught.value)


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return [line.removeprefix("x.toml: ") for line in str(caught.value).splitlines()]


def test_all_that_is_wrong_is_told_at_once() -> None:
    found = faults(
        'colour = 1\nlog_level = "loud"\n[lease]\nseconds = "x"\nmax_attempts = 0\n[lane.codex]\ncap = 1\n'
        "[lane.opencode]\ncapp = 3\nrunners = 201\n"
        '[routing]\nplan = "codex"\n'
        '[[forge]]\nkind = "svn"\nhost = "first.test"\n'
        '[[forge]]\nkind = "gitea"\nhost = "second.test/x"\ntoken_env = 3\n'
        '[[forge]]\nkind = "gitea"\nhost = "third.test"\n'
    )
    begin = [
        "unknown key colour",
        "lease.seconds is 'x'; it is a number",
        "routing.plan is 'codex'; it is one of 'claude_code', 'opencode'",
        "[lane.codex] is none",
        "unknown key lane.opencode.capp",
        "forge[0] (first.test).kind is 'svn'",
        "forge[1] (second.test/x).token_env is 3; it is a string",
        "lease.max_attempts is 0; set it above 0",
        "log_level is 'loud'",
        "lane.opencode.runners is 201",
        "forge[0] (first.test) has neither token_env nor token_file",
        "forge[1].host is 'second.test/x'; give a host name",
        "forge[2] (third.test) has neither token_env nor token_file",
    ]
    assert len(found) == len(begin), found
    for line, start in zip(found, begin, strict=True):
        assert line.startswith(start), line


def test_what_only_follows_from_another_fault_is_not_told() -> None:
    """A default stands in for the bad value, and what the file says must not be held against that."""
    assert faults("[lease]\nseconds = 'x'\nrenew_seconds = 800") == ["lease.seconds is 'x'; it is a number"]
    assert len(faults("[lease]\nseconds = 0")) == 1
    assert len(faults("[poller]\ninterval_seconds = -1")) == 1
    assert faults('[labels]\nplan = 3\nopt_in = "tireless/plan"') == ["labels.plan is 3; it is a string"]
    assert len(faults(FORGE.replace('"TOKEN"', "3"))) == 1


# Files, the environment and secrets


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (FORGE.replace('"TOKEN"', '"1f3b-SECRET"'), "forge[0] (git.test).token_env"),
        (FORGE + 'webhook_secret_env = "my SECRET"\n', "forge[0] (git.test).webhook_secret_env"),
        ('[database]\nurl_env = "postgresql://me:SECRET@db/tireless"', "database.url_env"),
        ('[lane.opencode]\nenv_from = ["sk-ant-SECRET"]', "lane.opencode.env_from"),
    ],
)
def test_a_secret_in_the_place_of_its_variables_name_is_not_quoted(text: str, key: str) -> None:
    [fault] = faults(text)
    assert fault == (
        f"{key} names something that no environment variable is called; give a variable's name alone"
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("TOKEN", "$TOKEN"),
        ("GITEA_TOKEN_2", "$GITEA_TOKEN_2"),
        ("ghp_AbCdEf0123456789abcdAbCdEf0123456789", None),
        ("c0ffee0123456789abcdef0123456789abcdef01", None),
        ("AKIA0123456789ABCDEF", None),
    ],
)
def test_what_may_be_a_token_is_not_shown_as_a_variables_name(
    tmp_path: Path, name: str, shown: str | None
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, FORGE.replace('"TOKEN"', f'"{name}"')), {})
    if shown is not None:
        assert f"token_env names {shown}, which is not set; export it" in str(caught.value)
    else:
        assert name not in str(caught.value)
        assert "not shown, since it may be the secret itself" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'lane = "KEY=SECRET"',
        '[lane]\nclaude_code = "KEY=SECRET"',
        '[lane.claude_code]\nenv = "KEY=SECRET"',
        '[lane.claude_code]\nenv = ["KEY=SECRET"]',
        '[lane.claude_code]\nenv = {KEY = ["SECRET"]}',
        '[lane.claude_code]\nenv_from = "SECRET"',
        'forge = ["SECRET"]',
        'forge = {token = "SECRET"}',
        'database = "password=SECRET"',
        '[database]\nurl = ["SECRET"]',
        FORGE.replace('token_env = "TOKEN"', 'token_file = "ghp_SECRET0123456789SECRET"'),
    ],
)
def test_where_secrets_are_near_a_value_of_the_wrong_kind_is_not_quoted(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), {})
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('state_dir = "~nobody-of-that-name/x"', "state_dir is '~nobody-of-that-name/x'; it cannot be used: "),
        ('[database]\nurl_file = "a\\u0000b"', "it cannot be used: it holds a NUL"),
        (f"[lease]\nmax_attempts = {'9' * 400}", "give a number up to 2147483647"),
        (f"[lease]\nseconds = {'9' * 400}", "it cannot be used: int too large"),
        ("[lease]\nseconds = 1e300", "lease.seconds is 1e+300; give a number up to 2147483647"),
        (f"[lease]\nmax_attempts = {'9' * 5000}", "is not TOML: "),
        (f"x = {'[' * 5000}", "is not TOML: "),
    ],
)
def test_what_is_beyond_all_measure_is_an_error_like_any_other(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), {})
    assert said in str(caught.value)
    assert len(str(caught.value)) < 1000, "and not told at length"


def test_in_one_line_the_file_is_named_once(tmp_path: Path) -> None:
    path = written(tmp_path, "colour = 1\n[lease]\nseconds = 0\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    first, second = str(caught.value).splitlines()
    assert caught.value.in_one_line == f"{first} | {second.removeprefix(f'{path}: ')}"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_file_that_cannot_be_read_or_is_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        load(tmp_path / "nowhere.toml", {})
    with pytest.raises(ConfigError, match=r"t\.toml: is not TOML"):
        load(written(tmp_path, "a = = b"), {})
    (tmp_path / "t.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match=r"t\.toml: is not TOML"):
        load(tmp_path / "t.toml", {})


def test_the_path_comes_from_the_argument_the_environment_or_the_usual_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = written(tmp_path, 'host = "given"')
    other = tmp_path / "other.toml"
    other.write_text('host = "other"')
    usual = tmp_path / "usual.toml"
    monkeypatch.setattr(module, "DEFAULT_PATHS", (str(tmp_path / "none.toml"), str(usual)))
    environ = {"TIRELESS_CONFIG": str(other)}
    assert load(given, environ).host == "given"
    assert load(None, environ).host == "other"
    assert load(None, {}).path is None
    usual.write_text('host = "usual"')
    assert load(None, {}).host == "usual"


def test_tokens_come_from_the_environment_or_a_file_and_do_not_show_themselves(tmp_path: Path) -> None:
    path = written(tmp_path, FORGE)
    found = load(path, {"TOKEN": " s3cret \n"})
    token = found.forge[0].token
    assert token is not None
    assert token.reveal() == "s3cret"
    assert "s3cret" not in repr(found)
    assert f"{token} {token!r}" == "Secret(…) Secret(…)"
    assert found.secrets() == ("s3cret",)
    secret_file = tmp_path / "token"
    secret_file.write_text("fr0m-file\n")
    path = written(tmp_path, FORGE.replace('token_env = "TOKEN"', f'token_file = "{secret_file}"'))
    assert load(path, {}).forge[0].token == Secret("fr0m-file")
    assert load(path, {}, tokens=False).forge[0].token is None


def test_a_webhooks_secret_is_read_and_shown_nowhere(tmp_path: Path) -> None:
    path = written(tmp_path, FORGE + 'webhook_secret_env = "HOOK"\n')
    found = load(path, {"TOKEN": "s3cret", "HOOK": "h00k"})
    assert found.forge[0].webhook_secret == Secret("h00k")
    assert found.secrets() == ("s3cret", "h00k")
    assert "h00k" not in repr(found)
    with pytest.raises(ConfigError, match=r"webhook_secret_env names \$HOOK, which is not set"):
        load(path, {"TOKEN": "s3cret"})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            'token_env = "TOKEN"',
            r"forge\[0\] \(git\.test\)\.token_env names \$TOKEN, which is not set; export it",
        ),
        (
            'token_file = "/nowhere/token"',
            r"forge\[0\] \(git\.test\)\.token_file /nowhere/token cannot be read",
        ),
        ('token_file = "/dev/null"', r"forge\[0\] \(git\.test\)\.token_file /dev/null is empty"),
    ],
)
def test_a_token_that_is_not_there_is_known_at_the_start(tmp_path: Path, source: str, message: str) -> None:
    path = written(tmp_path, FORGE.replace('token_env = "TOKEN"', source))
    with pytest.raises(ConfigError, match=message):
        load(path, {"TOKEN": ""})


def test_secrets_that_are_not_there_are_told_with_everything_else(tmp_path: Path) -> None:
    other = (
        '[[forge]]\nkind = "forgejo"\nhost = "b.test"\ntoken_file = "/nowhere/t"\nwebhook_secret_env = "HOOK"\n'
    )
    text = 'colour = 1\n[database]\nurl_file = "/nowhere/url"\n' + FORGE + other
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), {})
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{tmp_path}/t.toml: ") for line in lines)
    wanted = [
        "key colour",
        "names $TOKEN",
        "/nowhere/t cannot be read: No",
        "names $HOOK",
        "/nowhere/url cannot be",
    ]
    assert len(lines) == len(wanted), lines
    assert all(part in line for part, line in zip(wanted, lines, strict=True)), lines


@pytest.mark.parametrize("token", ["abc\nline2", "abc def", "abc\tdef", "äbc", "Bearer abc"])
def test_what_no_token_is_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    with pytest.raises(ConfigError, match=r"token_env \$TOKEN does not hold just a token") as caught:
        load(written(tmp_path, FORGE), {"TOKEN": token})
    file = tmp_path / "token"
    file.write_text(token)
    with pytest.raises(ConfigError, match=r"token_file .*/token does not hold just a token") as again:
        load(written(tmp_path, FORGE.replace('token_env = "TOKEN"', f'token_file = "{file}"')), {})
    assert "bc" not in str(caught.value) + str(again.value).replace(str(tmp_path), "")


def test_the_databases_url_comes_from_key_file_or_environment(tmp_path: Path) -> None:
    environ = {"TIRELESS_DATABASE_URL": "postgresql://env", "OTHER": "postgresql://other"}
    url_file = tmp_path / "url"
    url_file.write_text("postgresql://u:p@file\n")
    assert load(written(tmp_path, ""), {}).database.url is None
    assert load(written(tmp_path, ""), environ).database.url == "postgresql://env"
    assert (
        load(written(tmp_path, '[database]\nurl_env = "OTHER"'), environ).database.url == "postgresql://other"
    )
    from_file = load(written(tmp_path, f'[database]\nurl_file = "{url_file}"'), environ)
    assert from_file.database.url == "postgresql://u:p@file"
    assert from_file.secrets() == ("postgresql://u:p@file",)
    assert (
        load(written(tmp_path, '[database]\nurl = "postgresql://k"'), environ).database.url == "postgresql://k"
    )


def test_an_agents_environment_is_what_its_lane_names() -> None:
    lane = LaneConfig(env={"A": "1"}, env_from=("KEY", "ABSENT", "A"))
    assert agent_environment(lane, {"KEY": "k", "A": "0", "OTHER": "o"}) == {"KEY": "k", "A": "1"}
    assert unset_variables(lane, {"KEY": "k"}) == ["ABSENT"]
    assert unset_variables(lane, {"KEY": ""}) == ["KEY", "ABSENT"]


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("postgresql://u:pa%40ss@h/db", "pa%40ss"),
        ("postgresql://u@/db?host=/x&password=abc&port=1", "abc"),
        ("host=x password='a b' user=u", "a b"),
        ("postgresql://u@h:5432/db", None),
        ("host=/run/postgresql dbname=tireless", None),
    ],
)
def test_the_password_of_a_database_is_found_in_every_form(url: str, password: str | None) -> None:
    assert database_password(url) == password
    found = Config(database=DatabaseConfig(url=url)).secrets()
    assert found == ((url,) if password else ())  # so short a password is masked with its URL only


def test_a_long_password_of_a_database_is_a_secret_by_itself() -> None:
    url = "postgresql://u:long-enough%21-to-mask@h/db"
    secrets = Config(database=DatabaseConfig(url=url)).secrets()
    assert secrets == (url, "long-enough%21-to-mask", "long-enough!-to-mask")


URLS = [
    ("postgresql://u:s3cret@h:54x/db", "its port is no number between 1 and 65535; it looks like"),
    ("postgresql://u:s3cret@h:99999/db", "its port is no number between 1 and 65535"),
    ("postgresql://u:s3cret/word@h/db", "its port is no number .* write %3A for :, %2F for /"),
    ("postgresql://u:s3cret%zz@h/db", "invalid percent-encoded token; it looks like"),
    ("postgresql://u:s3cret@[h/db", r"end of string reached .* in IPv6 host address in URI; it looks like"),
    ("postgresql://u:s3cret@h/db?nonsense=1", "invalid URI query parameter; it looks like"),
    ("mysql://u:s3cret@h/db", "it is no URL and no list of parameters; it looks like"),
    ("host=h password='s3cret", "unterminated quoted string in connection info string; it looks like"),
    ("postgresql://u:s3cret@h/db?sslmode=on", "its sslmode is none of disable, allow,"),
    ("postgresql://u:s3cret@h/db?connect_timeout=soon", "its connect_timeout is no whole number"),
    ("host=a,b,c port=1,2 password=s3cret", "it has 2 ports for 3 hosts; give one a host"),
]


@pytest.mark.parametrize(("url", "message"), URLS)
def test_a_database_url_that_cannot_be_used_is_known_when_it_is_read(
    tmp_path: Path, url: str, message: str
) -> None:
    file = tmp_path / "url"
    file.write_text(url)
    for key, text, environ in (
        ("database.url", f'[database]\nurl = """{url}"""', {}),
        ("database.url (from $TIRELESS_DATABASE_URL)", "", {"TIRELESS_DATABASE_URL": url}),
        (f"database.url (from database.url_file {file})", f'[database]\nurl_file = "{file}"', {}),
    ):
        where = re.escape(f"{tmp_path}/t.toml: {key} cannot be used: ")
        with pytest.raises(ConfigError, match=f"^{where}{message}") as caught:
            load(written(tmp_path, text), environ)
        assert not re.search("s3cret|word@", str(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///tireless?host=/run/postgresql",
        "postgresql://u:p%40%2F%3A@db.test:5432/tireless?sslmode=verify-full&connect_timeout=3",
        "postgres://u@h",
        "postgresql://u@[::1]:5432/x",
        "postgresql://a:1,b:2/x?target_session_attrs=read-write",
        "host=a,b port=5432 dbname=x",
        "hostaddr=127.0.0.1 port='' dbname=x",
        "service=tireless",
    ],
)
def test_every_form_that_libpq_takes_is_taken(tmp_path: Path, url: str) -> None:
    assert load(written(tmp_path, ""), {"TIRELESS_DATABASE_URL": url}).database.url == url
