"""LMCache's daemon in a process of its own, which its connector for vLLM talks to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from processes import ended, free_port, kill_session

_PATIENCE = 120.0


class Daemon:
    """A daemon with 2 GiB of memory, started when its port is asked for. A context manager.

    Args:
        installed: a folder that ``pip install --target`` put LMCache into; the environment's
            packages come after it.
        log: a file for its output.
    """

    def __init__(self, installed: Path | None, log: Path) -> None:
        self.environment = {"DO_NOT_TRACK": "1", "LMCACHE_TRACK_USAGE": "false"}
        if installed is not None:
            others = os.environ.get("PYTHONPATH", "")
            self.environment["PYTHONPATH"] = f"{installed.resolve()}:{others}"
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def port(self) -> int:
        """Where it listens.

        Raises:
            AssertionError: it does not start; with its output.
        """
        if self._process is None:
            self._start()
        return self._port

    def _start(self) -> None:
        self._port = free_port()
        options = {
            "--host": "127.0.0.1",
            "--port": str(self._port),
            "--http-host": "127.0.0.1",
            "--http-port": str(free_port()),
            "--l1-size-gb": "2",
            "--eviction-policy": "LRU",
            # What its connector does on a CPU.
            "--supported-transfer-mode": "engine_driven",
        }
        words = [word for option in options.items() for word in option]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lmcache.cli.main", "server", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
                start_new_session=True,
            )
        until = time.monotonic() + _PATIENCE
        while not self._listens():
            said = self._log.read_text(errors="replace")[-6000:]
            assert not ended(self._process), said
            assert time.monotonic() < until, said
            time.sleep(0.2)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            kill_session(self._process)
