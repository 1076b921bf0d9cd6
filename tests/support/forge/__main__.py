"""A fake forge as a process of its own.

    python -m tests.support.forge --kind gitea --root DIR [--token T] [--port N] [--control]

Prints one JSON line when it is ready: url, api_url, host, token, pid. It ends with TERM or INT. With --control each
line of its standard input is a call on the forge, {"call": "open_issue", "args": ["title"], "kwargs": {}}, answered
by one line {"result": …} or {"error": …}, and the end of input ends the process: it does not outlive its starter.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from tests.support.forge import KINDS, FakeForge, start


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.support.forge")
    parser.add_argument("--kind", choices=sorted(KINDS), required=True)
    parser.add_argument("--root", type=Path, required=True, help="where the bare repositories go")
    parser.add_argument("--token", default="t0ken-of-the-fake")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--control", action="store_true", help="read calls from standard input")
    options = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with start(options.kind, options.root, token=options.token, port=options.port) as forge:
        facts = {"url": forge.url, "api_url": forge.api_url, "host": forge.host, "token": forge.token}
        _say({**facts, "pid": os.getpid()})
        if options.control:
            threading.Thread(target=_obey, args=(forge, ended), daemon=True).start()
        ended.wait()
    return 0


def _obey(forge: FakeForge, ended: threading.Event) -> None:
    for line in sys.stdin:
        try:
            order = json.loads(line)
            call = getattr(forge, order["call"])
            result = call(*order.get("args", []), **order.get("kwargs", {})) if callable(call) else call
            _say({"result": result})
        except Exception as e:  # whatever it is, the starter wants to know
            _say({"error": f"{type(e).__name__}: {e}"})
    ended.set()


def _say(data: Any) -> None:
    print(json.dumps(data, default=_plain), flush=True)


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
