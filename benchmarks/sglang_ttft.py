"""``python -m benchmarks.sglang_ttft``: time to the first token in a real SGLang, side by side.

Engines of all sides run side by side and take turns: the same model, the same prompts, and while
one answers the others wait. A prompt is new to an engine once (a miss); then device and host
memory of SGLang are emptied, and it is asked for again (a hit of what is behind them).
``make bench-sglang`` sets everything up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from benchmarks.machine import describe, load
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline
from sglang_engines import PAGE, ROOT, Engine, behind, linked, prompt

PAGES = 24
TOKENS = PAGES * PAGE + 9
_PAUSE = Event()
SIDES = ("none", "file", "hexkv", "hexkv-memory", "linker")
OUTPUT = Path(__file__).resolve().parent / "results" / "sglang_ttft.json"


@dataclass
class Side:
    """What is behind an engine, and what was measured with it."""

    name: str
    folder: Path
    miss: list[float] = field(default_factory=list)
    hit: list[float] = field(default_factory=list)
    hit_tokens: list[int] = field(default_factory=list)

    def begin(self, model: Path) -> Engine:
        """An engine. SGLang's own file backend is told its folder by the environment."""
        disk = {"store": "disk", "settings": {"root": str(self.folder / "disk")}}
        hexkv = {"pool": {"bytes": "512MiB"}, "tiers": [disk]}
        settings: Mapping[str, object] = {
            "none": {},
            "file": behind(backend="file"),
            "hexkv": behind(**hexkv),
            "hexkv-memory": behind(**hexkv | {"tiers": [{"store": "memory"}]}),
            "linker": linked(**hexkv),
        }[self.name]
        files = self.folder / "files"
        files.mkdir(exist_ok=True)
        env = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(files)}
        return Engine(model, self.folder / "log", env=env, **settings)

    def written(self) -> int:
        """Files that lie in its folder."""
        return sum(path.is_file() for path in self.folder.rglob("*"))


def rest(one: Side, before: int) -> None:
    """Wait until what was computed is stored: as long as files are added, and a second more."""
    if one.name == "none":
        return
    clock = SystemClock()
    patience = Deadline.after(clock, 60.0)
    known, quiet = -1, Deadline.after(clock, 1.0)
    while not patience.expired and not quiet.expired:
        if (now := one.written()) != known:
            known, quiet = now, Deadline.after(clock, 1.0)
        _PAUSE.wait(0.05)
    if one.name != "hexkv-memory" and known <= before:
        raise RuntimeError(f"{one.name} stored nothing")


def measure(sides: Sequence[Side], model: Path, rounds: int) -> None:
    """Take turns; the first prompt only warms up."""
    answers: dict[int, list[int]] = {}
    with ExitStack() as stack:
        engines = [(one, stack.enter_context(one.begin(model))) for one in sides]
        for number in range(rounds + 1):
            words = prompt(f"ttft {number}", TOKENS)
            for one, engine in engines[number % len(engines) :] + engines[: number % len(engines)]:
                before = one.written()
                for into in (one.miss, one.hit):
                    [answer] = engine.generate(words, tokens=4)
                    if answer.tokens != answers.setdefault(number, answer.tokens):
                        raise RuntimeError(f"{one.name}: other tokens than the others")
                    if number:
                        into.append(answer.first_token_seconds)
                        if into is one.hit:
                            one.hit_tokens.append(answer.cached)
                    rest(one, before)
                    engine.flush()
                    before = -1


def summary(times: Sequence[float]) -> dict[str, object]:
    """Least and median, and all of them."""
    return {
        "min": min(times),
        "median": statistics.median(times),
        "all": [round(time, 4) for time in times],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what *arguments* ask for. The exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    model = ROOT / "build" / "tiny-llama"
    script = ROOT / "adapters" / "vllm" / "e2e" / "tiny_llama.py"
    subprocess.run([sys.executable, str(script), str(model)], check=True)
    with tempfile.TemporaryDirectory(prefix="ttft-", dir=ROOT / "build") as scratch:
        machine = describe(Path(scratch))
        sides = []
        for name in asked.side:
            folder = Path(scratch) / name
            folder.mkdir()
            sides.append(Side(name, folder))
        measure(sides, model, asked.rounds)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine | {"load_after": load()},
        "prompt_tokens": TOKENS,
        "page_tokens": PAGE,
        "ttft_seconds": {
            one.name: {
                "miss": summary(one.miss),
                "second": summary(one.hit),
                "second_cached_tokens": min(one.hit_tokens),
            }
            for one in sides
        },
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n")
    for one in sides:
        print(
            f"{one.name:13} miss {min(one.miss):.3f} s, again {min(one.hit):.3f} s"
            f" ({min(one.hit_tokens)} of {TOKENS} tokens)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
