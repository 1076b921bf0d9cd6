"""Whether this account can use the state directory, and if not, what the fault is and the way out."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path


def fault(place: Path) -> str | None:
    """Why `place` cannot be used, or made, by the account that asks; None if it can."""
    if os.path.isdir(place):
        why = _closed(place)
        return f"{place} {why}" if why is not None else None
    if os.path.lexists(place):
        what = "a link to nothing" if place.is_symlink() else "no directory"
        return f"{place} is {what}; move it away, or set state_dir to another place"
    there = next(parent for parent in place.parents if os.path.lexists(parent))
    if not os.path.isdir(there):
        return f"{place} cannot be made, since {there} is no directory; set state_dir to another place"
    if _closed(there) is None:
        return None
    me = account(os.geteuid())
    ways = "run as root, or set state_dir to another place"
    if not os.access(there, os.X_OK):
        return f"{place} cannot be reached by {me}, since {there} {_whose(there)}; {ways}"
    made = f"have it made for {me} (install -d -o {me} {place})"
    return f"{place} cannot be made by {me}, since {there} {_whose(there)}; {made}, {ways}"


def there_of(place: Path) -> Path:
    """The directory, or what of the way to it is there."""
    return next(p for p in (place, *place.parents) if os.path.exists(p))


def _closed(place: Path) -> str | None:
    """Why a directory that is there cannot be written to."""
    if os.access(place, os.W_OK | os.X_OK):
        return None
    whose = _whose(place)
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"{whose}; set state_dir to another place"
    status = place.stat()
    if status.st_uid == os.geteuid():
        return f"{whose}; chmod u+rwx {place}"
    accounts = " or as ".join(dict.fromkeys([account(status.st_uid), "root"]))
    return f"{whose} and is not writable for {account(os.geteuid())}; run as {accounts}"


def _whose(place: Path) -> str:
    status = place.stat()
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return "is on a file system that is mounted read-only"
    if status.st_uid == os.geteuid():
        return f"is not writable for its owner (mode {stat.S_IMODE(status.st_mode):04o})"
    return f"belongs to {account(status.st_uid)}"


def account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
