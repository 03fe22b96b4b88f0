"""The cause for which an engine cannot start, passed on to the process that the user started.

vLLM and SGLang build caches in processes of their own. The first process ends last, with an error
that names no cause, below the tracebacks of all others. So it keeps a file in memory open, which
its descendants find in ``/proc`` and write the cause into; and it ends its log with that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = "hexkv-cause"
_LONGEST = 4096
"""Bytes of a cause."""

_MOST = 16
"""Generations of processes between the first one and a rank's, at most."""


def cause_report(host: str) -> Callable[[], bool]:
    """Return a function that writes the cause that a descendant passes on from now on.

    The function returns False if there is none.

    Args:
        host: the engine's name.
    """
    try:
        file = os.memfd_create(_NAME)
    except (AttributeError, OSError):  # not Linux
        return lambda: False

    def report() -> bool:
        with suppress(OSError):
            if cause := os.pread(file, _LONGEST, 0).decode(errors="replace"):
                sys.stderr.write(f"{host} does not start, because hexkv cannot:\n{cause}\n")
                sys.stderr.flush()
                return True
        return False

    return report


@contextmanager
def causing() -> Iterator[None]:
    """Pass on an error of the block to the process that the user started."""
    try:
        yield
    except Exception as error:
        with suppress(OSError, ValueError):
            _pass_on(f"{type(error).__name__}: {' '.join(str(error).split())}")
        raise


def _pass_on(cause: str) -> None:
    process = os.getppid()
    for _ in range(_MOST):
        if process <= 1:
            return
        for link in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                if _NAME in str(link.readlink()):
                    with link.open("r+b", buffering=0) as file:
                        file.write(cause.encode()[:_LONGEST])
                    return
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
