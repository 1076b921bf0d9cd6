"""Imported by every Python that finds it on its path: a wall clock that is off by the seconds in $SHIFTED_CLOCK.

The file is read at each look, so the clock can step while programs run. Monotonic clocks are left alone.
"""

import datetime
import os
import time

_PATH = os.environ.get("SHIFTED_CLOCK", "")
_time, _time_ns, _gettime = time.time, time.time_ns, time.clock_gettime
_datetime = datetime.datetime


def _offset() -> float:
    try:
        with open(_PATH) as f:
            return float(f.read() or 0)
    except (OSError, ValueError):
        return 0.0


class _Shifted(_datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "_Shifted":
        return cls.fromtimestamp(_time() + _offset(), tz)


if _PATH:
    time.time = lambda: _time() + _offset()
    time.time_ns = lambda: _time_ns() + int(_offset() * 1e9)
    time.clock_gettime = lambda clock: _gettime(clock) + (_offset() if clock == time.CLOCK_REALTIME else 0.0)
    datetime.datetime = _Shifted  # type: ignore[misc]
