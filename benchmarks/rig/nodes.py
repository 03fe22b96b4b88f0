"""Nodes as processes, for benchmarks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.rig.measure import must

TICK = os.sysconf("SC_CLK_TCK")
MEMORY = ({"store": "memory"},)


class Node:
    """A node as a process, with its socket in *folder*."""

    def __init__(
        self, folder: Path, pool: int | str, tiers: Sequence[Mapping[str, object]] = MEMORY
    ) -> None:
        self.socket = folder / "node.sock"
        config = folder / "node.yaml"
        config.write_text(json.dumps({"pool": {"bytes": pool}, "tiers": tiers}))
        command = [sys.executable, "-m", "hexkv.plugins", "node", "--json"]
        command += ["--config", str(config), "--socket", str(self.socket)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not self.socket.exists():
            must(self.process.poll() is None, "the node did not start")
            time.sleep(0.05)

    def cpu(self) -> float:
        """CPU seconds that it took so far."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICK

    def switches(self) -> int:
        """How often its threads went to sleep so far."""
        return sum(
            int(line.split()[1])
            for status in Path(f"/proc/{self.process.pid}/task").glob("*/status")
            for line in status.read_text().splitlines()
            if line.startswith("voluntary")
        )

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


@contextmanager
def served(
    folder: Path, pool: int | str, tiers: Sequence[Mapping[str, object]] = MEMORY
) -> Iterator[Node]:
    """A node, for a while."""
    folder.mkdir(parents=True)
    node = Node(folder, pool, tiers)
    try:
        yield node
    finally:
        node.close()
