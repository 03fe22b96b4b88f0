"""What is counted for vLLM: its log line, and its ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

LOADED_TOKENS = "loaded_tokens"
LOADED_BYTES = "loaded_bytes"
LOAD_SECONDS = "load_seconds"
FAILED_TOKENS = "failed_tokens"
STORED_TOKENS = "stored_tokens"
STORED_BYTES = "stored_bytes"
STORE_SECONDS = "store_seconds"
DROPPED_TOKENS = "dropped_tokens"

HELP: Mapping[str, str] = {
    LOADED_TOKENS: "Tokens whose KV was loaded, summed over ranks.",
    LOADED_BYTES: "Bytes of KV that were loaded.",
    LOAD_SECONDS: "Seconds spent loading.",
    FAILED_TOKENS: "Tokens whose KV was found but did not arrive, and was computed.",
    STORED_TOKENS: "Tokens whose KV was copied to be stored, summed over ranks.",
    STORED_BYTES: "Bytes of KV that were copied to be stored.",
    STORE_SECONDS: "Seconds for which steps waited until KV to be stored was copied.",
    DROPPED_TOKENS: "Tokens whose KV was not stored, for want of memory or time.",
}


class Tally:
    """Adds up what a rank does. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, float] = {}

    def loaded(self, tokens: int, size: int, seconds: float) -> None:
        """KV was loaded."""
        self._add({LOADED_TOKENS: tokens, LOADED_BYTES: size, LOAD_SECONDS: seconds})

    def failed(self, tokens: int) -> None:
        """KV did not arrive."""
        self._add({FAILED_TOKENS: tokens})

    def stored(self, tokens: int, dropped: int, size: int, seconds: float) -> None:
        """KV was copied to be stored."""
        self._add(
            {
                STORED_TOKENS: tokens,
                DROPPED_TOKENS: dropped,
                STORED_BYTES: size,
                STORE_SECONDS: seconds,
            }
        )

    def take(self) -> dict[str, float]:
        """What was counted since the last call; empty where nothing was."""
        if not self._counts:
            return {}
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def _add(self, counts: Mapping[str, float]) -> None:
        with self._lock:
            for name, amount in counts.items():
                self._counts[name] = self._counts.get(name, 0) + amount


def per_second(counts: Mapping[str, float]) -> dict[str, int | float]:
    """*counts* as a line for people: whole numbers, and how fast bytes moved while they did."""
    line: dict[str, int | float] = {
        name: round(amount, 3) if name.endswith("seconds") else int(amount)
        for name, amount in counts.items()
    }
    for size, seconds in ((LOADED_BYTES, LOAD_SECONDS), (STORED_BYTES, STORE_SECONDS)):
        if counts.get(seconds):
            rate = counts.get(size, 0) / counts[seconds] / 1e9
            line[seconds.replace("seconds", "GB_per_second")] = round(rate, 2)
    return line
