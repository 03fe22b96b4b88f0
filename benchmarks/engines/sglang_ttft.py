"""``python -m benchmarks.engines.sglang_ttft``: time to the first token in SGLang, side by side.

Engines of all sides take turns: the same model, the same prompts, and while one answers the
others are stopped (``SIGSTOP``), for an idle SGLang asks for work without a rest. A prompt is new
to an engine once (a miss); then device and host memory of SGLang are emptied, and it is asked for
again (a hit of the tiers behind them). Each round gives one ratio of a side to another, and the
median of these is compared. One process is some percent faster than another one of the same
program, so all engines are started several times, and ``control``, a second engine without a
cache, shows what of a ratio means nothing. ``host`` is SGLang's hierarchical cache with nothing
behind it: further tiers can add only to that. And as none of that can show half a
percent, the time in hexkv's own hooks until the first token is taken, on whatever thread. A turn
in which something else used the processor is repeated, with another prompt. ``make bench-sglang``
sets everything up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from threading import Event

from benchmarks.rig.machine import describe, forget, load
from benchmarks.rig.rounds import against
from engines.sglang.sglang_engines import (
    ENVIRONMENT,
    PAGE,
    ROOT,
    Answer,
    Engine,
    behind,
    hierarchical,
    linked,
    prompt,
)
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline

PAGES = 24
TOKENS = PAGES * PAGE + 9
_PAUSE = Event()
SIDES = ("none", "control", "host", "file", "hexkv", "hexkv-memory", "linker")
CALM = 0.1
"""Of one core, what others may use while an engine is asked."""

ATTEMPTS = 30
TIMED = {"module_path": "benchmarks.engines.sglang_timed", "class_name": "Storage"}
UNCACHED = {"none", "control", "host"}
OUTPUT = Path(__file__).resolve().parents[1] / "results" / "sglang_ttft.json"


@dataclass
class Side:
    """The caches behind an engine, and the measurements with it."""

    name: str
    folder: Path
    cold: bool
    """Whether hits come from the disk itself. Otherwise they come from the system's page cache."""

    miss: dict[int, float] = field(default_factory=dict)
    """Seconds to the first token, by round. Rounds that were never calm are missing."""

    hooks: dict[int, float] = field(default_factory=dict)
    """Seconds of these misses inside hexkv, where this is hexkv."""

    hit: dict[int, float] = field(default_factory=dict)
    hit_tokens: list[int] = field(default_factory=list)

    def begin(self, model: Path) -> Engine:
        """An engine. SGLang's own file backend gets its folder by the environment."""
        # Left to itself hexkv passes the system's page cache by, which SGLang's files count on.
        direct = "auto" if self.cold else "off"
        root = str(self.folder / "disk")
        disk = {"store": "disk", "settings": {"root": root, "direct": direct}}
        hexkv = {"pool": {"bytes": "512MiB"}, "tiers": [disk]}
        settings: Mapping[str, object] = {
            "none": {},
            "control": {},
            "host": hierarchical(),
            "file": behind(backend="file"),
            "hexkv": behind(**hexkv | TIMED),
            "hexkv-memory": behind(**hexkv | TIMED | {"tiers": [{"store": "memory"}]}),
            "linker": linked("benchmarks.engines.sglang_timed", "Linker", **hexkv),
        }[self.name]
        files = self.folder / "files"
        files.mkdir(exist_ok=True)
        env = {
            "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(files),
            "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{ROOT}",
            "HOOK_TIMES": str(self.hook_times),
        }
        return Engine(model, self.folder / "log", env=env, **settings)

    @property
    def hook_times(self) -> Path:
        """The file that :mod:`benchmarks.engines.sglang_timed` writes."""
        return self.folder.with_name(f"{self.name}-hooks")

    def written(self) -> int:
        """Files that lie in its folder."""
        return sum(path.is_file() for path in self.folder.rglob("*"))


def rest(one: Side, before: int) -> None:
    """Wait until the computed KV is stored: while files are added, and half a second more."""
    if one.name in UNCACHED:
        return
    clock = SystemClock()
    patience = Deadline.after(clock, 60.0)
    known, quiet = -1, Deadline.after(clock, 0.5)
    while not patience.expired and not quiet.expired:
        if (now := one.written()) != known:
            known, quiet = now, Deadline.after(clock, 0.5)
        _PAUSE.wait(0.05)
    if one.name != "hexkv-memory" and known <= before:
        raise RuntimeError(f"{one.name} stored nothing")


def measure(sides: Sequence[Side], model: Path, rounds: range) -> None:
    """Start engines, and let them take turns; the first prompt only warms up."""
    answers: dict[str, list[int]] = {}
    with ExitStack() as stack:
        engines = []
        for one in sides:
            engines.append((one, stack.enter_context(one.begin(model))))
            engines[-1][1].pause()
        for number in rounds:
            first = number % len(engines)
            for one, engine in engines[first:] + engines[:first]:
                with engine.awake():
                    for attempt in range(ATTEMPTS):
                        name = f"ttft {number} {attempt}"
                        miss, hit, calm = turn(one, engine, name)
                        tokens = miss.tokens + hit.tokens
                        if tokens != answers.setdefault(name, tokens):
                            raise RuntimeError(f"{one.name}: other tokens than the others")
                        if number == rounds.start:
                            break
                        if calm:
                            one.miss[number] = miss.first_token_seconds
                            ended = miss.began + miss.first_token_seconds
                            one.hooks[number] = between(one.hook_times, miss.began, ended)
                            one.hit[number] = hit.first_token_seconds
                            one.hit_tokens.append(hit.cached)
                            break


def turn(one: Side, engine: Engine, name: str) -> tuple[Answer, Answer, bool]:
    """A miss, and then a hit, and True if no other process was at work."""
    answers, calm = [], True
    words, before = prompt(name, TOKENS), one.written()
    for hit in (False, True):
        if hit and one.cold:
            forget(one.folder)
        others, began = elsewhere(engine), SystemClock().now()
        [answer] = engine.generate(words, tokens=4)
        used = elsewhere(engine) - others
        calm = calm and used < CALM * (SystemClock().now() - began)
        answers.append(answer)
        rest(one, -1 if hit else before)
        engine.flush()
    miss, hit = answers
    return miss, hit, calm


def between(file: Path, start: float, end: float) -> float:
    """Seconds from *start* to *end* that were spent in hooks, of all threads."""
    if not file.exists():
        return 0.0
    calls = [map(float, line.split()) for line in file.read_text().splitlines()]
    return sum(max(0.0, min(end, last) - max(start, first)) for first, last in calls)


def elsewhere(engine: Engine) -> float:
    """Seconds of the processor that went to anything but *engine* so far."""
    first, *_ = Path("/proc/stat").read_text().splitlines()
    user, nice, system, _, _, *interrupts = (int(field) for field in first.split()[1:9])
    busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return busy - float(engine.cpu_seconds())


def summary(by_round: Mapping[int, float]) -> dict[str, object]:
    """Least and median, and all of them."""
    times = list(by_round.values())
    return {
        "min": min(times),
        "median": statistics.median(times),
        "all": [round(time, 4) for time in times],
    }


INSIDE = (("hooks of a miss", "none"), ("miss", "none"))
COMPARED = {
    "control": (("miss", "none"),),
    "host": (("miss", "none"),),
    "file": (("miss", "none"), ("miss", "host")),
    "hexkv": (*INSIDE, ("miss", "host"), ("miss", "file"), ("hit", "file")),
    "hexkv-memory": (*INSIDE, ("miss", "host"), ("miss", "file"), ("hit", "file")),
    "linker": (*INSIDE, ("miss", "file"), ("hit", "file")),
}


TIMES: dict[str, Callable[[Side], dict[int, float]]] = {
    "miss": attrgetter("miss"),
    "hooks of a miss": attrgetter("hooks"),
    "hit": attrgetter("hit"),
}


def compared(sides: Sequence[Side]) -> dict[str, dict[str, dict[str, float]]]:
    """A miss beside that of no cache, of SGLang's host memory and files; a hit beside its files."""
    known = {one.name: one for one in sides}
    return {
        name: {
            f"{what} / {limit}": against(TIMES[what](known[name]), TIMES[of](known[limit]))
            for what, limit in limits
            for of in ["hit" if what == "hit" else "miss"]
            if limit in known
        }
        for name, limits in COMPARED.items()
        if name in known
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what *arguments* ask for. The exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--starts", type=int, default=3, help="of every engine")
    parser.add_argument("--rounds", type=int, default=5, help="after each start")
    parser.add_argument("--cold", action="store_true", help="hits come from the disk itself")
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
            sides.append(Side(name, folder, asked.cold))
        for start in range(asked.starts):
            begin = start * (asked.rounds + 1)
            measure(sides, model, range(begin, begin + asked.rounds + 1))
    if any(len(one.miss) < asked.rounds for one in sides):
        raise SystemExit("others used the processor all the time: nothing was measured")
    ratios = compared(sides)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine | {"load_after": load()},
        "prompt_tokens": TOKENS,
        "page_tokens": PAGE,
        "hits_from": "disk" if asked.cold else "page cache",
        "starts": asked.starts,
        "ttft_seconds": {
            one.name: {
                "miss": summary(one.miss),
                "second": summary(one.hit),
                "second_cached_tokens": min(one.hit_tokens),
            }
            for one in sides
        },
        "compared": ratios,
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n")
    for one in sides:
        miss, hit = (statistics.median(times.values()) for times in (one.miss, one.hit))
        print(
            f"{one.name:13} miss {miss:.3f} s, again {hit:.3f} s"
            f" ({min(one.hit_tokens)} of {TOKENS} tokens)"
        )
    for name, found in ratios.items():
        print(f"{name:13}", ", ".join(f"{what} {r['median']:.3f}" for what, r in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
