"""Files that a test leaves behind, some of them read-only on purpose."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any


def remove_tree(root: Path) -> None:
    def open_up(action: Callable[..., Any], path: str, _error: Any) -> None:
        os.chmod(os.path.dirname(path), stat.S_IRWXU)
        if not os.path.islink(path):
            os.chmod(path, stat.S_IRWXU)
        action(path)

    if root.exists():
        shutil.rmtree(root, onerror=open_up)
