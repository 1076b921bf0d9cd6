"""A table as TOML has it -> a frozen dataclass, by its fields' types; knows of no key by name.

What is wrong is collected, one fault a key, so that all of it can be told at once; where a value is bad, its default
stands in, so that what follows can still be read."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tireless.redact import Redactor

_NEAR_SECRETS = re.compile(r"(^|\.)env(\.|$)|env_from|^(database|forge|lane)(\[\d+\]|\.\w+)?$")
_masked = Redactor()


class Reading:
    """One reading of a table. `not_keys`: fields that are none of its keys."""

    def __init__(self, not_keys: Collection[tuple[type, str]] = ()) -> None:
        self.not_keys = not_keys
        self.entries: dict[str, Any] = {}  # of lists, by key, `forge[0] (git.example)`: bad ones have no place
        self._faults: dict[str, str] = {}

    def fault(self, key: str, text: str) -> None:
        self._faults.setdefault(key, text)

    def demand(self, ok: bool, key: str, value: object, rule: str) -> None:
        if not ok:
            self.fault(key, f"{key} is {shown(value, key)}; {rule}")

    def good(self, *keys: str) -> bool:
        """Whether there is nothing wrong with any of them so far."""
        return self._faults.keys().isdisjoint(keys)

    @property
    def faults(self) -> list[str]:
        return list(self._faults.values())


def shown(value: object, key: str = "") -> str:
    """A value as an error shows it. What may hold a secret is not shown: a list or a table, a text where one belongs
    beside secrets, a password in a URL, what is shaped like a token."""
    if isinstance(value, list | Mapping):
        return "a list" if isinstance(value, list) else "a table"
    if isinstance(value, str) and _NEAR_SECRETS.search(key):
        return "a text"
    text = re.sub(r":/+.*@", "://…@", repr(value))
    return _masked(re.sub(r"(password\s*=\s*).*", r"\1…", text, flags=re.IGNORECASE))


NOTHING: Any = object()  # in place of a value with a fault


def build(cls: Any, table: Any, reading: Reading, prefix: str = "") -> Any:
    """An instance of the dataclass `cls`; NOTHING, and a fault, if none can be had. `prefix`: of the keys in it."""
    if not isinstance(table, Mapping):
        reading.demand(False, prefix.rstrip("."), table, "it is a table of keys")
        return NOTHING
    before = len(reading.faults)
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls) if (cls, f.name) not in reading.not_keys}
    for key in table:
        if key not in known:
            reading.fault(f"{prefix}{key}", f"unknown key {prefix}{key}{suggestion(key, known)}")
    values: dict[str, Any] = {}
    for name, f in known.items():
        required = f.default is MISSING and f.default_factory is MISSING
        if name in table:
            values[name] = _convert(hints[name], table[name], reading, f"{prefix}{name}")
        elif required:
            reading.fault(f"{prefix}{name}", f"{prefix}{name} is missing; add it")
        if required and values.get(name, NOTHING) is NOTHING:
            values[name] = _stand_in(hints[name])
    try:
        return cls(**{name: value for name, value in values.items() if value is not NOTHING})
    except ValueError as e:  # a dataclass that checks itself, such as LabelProtocol
        if len(reading.faults) == before:  # a default that stands in proves nothing
            reading.fault(prefix, str(e))
        return NOTHING


def _stand_in(hint: Any) -> Any:
    """For a required value that is missing or bad, so that the rest of its table can be judged."""
    return next(iter(hint)) if issubclass(hint, StrEnum) else hint()


_ALIKE = 0.8  # difflib's ratio: one letter wrong, missing, too many or moved in a word of six


def suggestion(key: str, known: Iterable[str]) -> str:
    """What was meant, if it is one slip away, or goes on where the key ends (`token` for `token_env`); or else all
    that there is."""
    import difflib

    longer = [name for name in known if key and name.startswith(f"{key}_")]
    near = difflib.get_close_matches(key, known, n=1, cutoff=_ALIKE) or longer
    return f"; did you mean {' or '.join(near)}?" if near else f"; known here: {', '.join(sorted(known))}"


def _convert(hint: Any, value: Any, reading: Reading, key: str) -> Any:
    """The value in its type; NOTHING, and a fault, if it is none."""
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [a for a in args if a is not type(None)]
        return _convert(inner[0], value, reading, key)
    if is_dataclass(hint):
        return build(hint, value, reading, f"{key}.")
    if origin is tuple:
        return _convert_list(args[0], value, reading, key)
    if origin is not None and issubclass(origin, Mapping):
        return _convert_table(args, value, reading, key)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        try:
            return hint(value)
        except ValueError:
            reading.demand(False, key, value, f"it is one of {', '.join(repr(str(m)) for m in hint)}")
            return NOTHING
    return _convert_scalar(hint, value, reading, key)


def _convert_list(item: Any, value: Any, reading: Reading, key: str) -> Any:
    if not isinstance(value, list):
        reading.demand(False, key, value, "it is a list")
        return NOTHING
    found: list[Any] = []
    for i, v in enumerate(value):
        made = _convert(item, v, reading, entry_key(key, i, v))
        if made is not NOTHING:
            found.append(made)
            reading.entries[entry_key(key, i, v)] = made
    return tuple(found)


def entry_key(key: str, i: int, value: Any) -> str:
    """Which entry of a list is meant: its place, and its host where it has one that may be shown."""
    host = value.get("host") if isinstance(value, Mapping) else getattr(value, "host", None)
    return f"{key}[{i}] ({host})" if isinstance(host, str) and host and "@" not in host else f"{key}[{i}]"


def _convert_table(args: tuple[Any, ...], value: Any, reading: Reading, key: str) -> Any:
    if not isinstance(value, Mapping):
        reading.demand(False, key, value, "it is a table")
        return NOTHING
    names = [str(name) for name in args[0]] if issubclass(args[0], StrEnum) else None
    result: dict[Any, Any] = {}
    for k, v in value.items():
        if names is not None and k not in names:
            there = " and ".join(f"[{key}.{name}]" for name in names)
            reading.fault(f"{key}.{k}", f"[{key}.{k}] is none of the {key}s that there are: {there}")
            continue
        made = _convert(args[1], v, reading, f"{key}.{k}")
        if made is not NOTHING:
            result[args[0](k)] = made
    return result


_SCALARS: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a string"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    Path: ((str,), "a path, as a string"),
}


def _convert_scalar(hint: Any, value: Any, reading: Reading, key: str) -> Any:
    allowed, what = _SCALARS[hint]
    if not isinstance(value, allowed) or (isinstance(value, bool) and hint is not bool):
        reading.demand(False, key, value, f"it is {what}")
        return NOTHING
    try:
        if hint is Path and "\0" in str(value):
            raise ValueError("it holds a NUL")
        return Path(str(value)).expanduser() if hint is Path else hint(value)
    except (ValueError, OverflowError, RuntimeError) as e:  # the home of nobody, a number beyond all measure
        reading.demand(False, key, value, f"it cannot be used: {e}")
        return NOTHING
