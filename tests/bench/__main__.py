"""python -m tests.bench NAME [options]: one measurement, each in a module of that name."""

from __future__ import annotations

import importlib
import sys

NAMES = ("queue", "wake", "idle", "enqueue", "poll", "workspace")


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in NAMES:
        print(f"usage: python -m tests.bench {{{'|'.join(NAMES)}}} [options]", file=sys.stderr)
        return 64
    code = importlib.import_module(f"tests.bench.{argv[0]}").main(argv[1:])
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
