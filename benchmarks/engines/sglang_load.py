"""``python -m benchmarks.engines.sglang_load``: stored pages of concurrent requests, in SGLang.

Every prompt is stored by one engine, whose device and host memory are then emptied; then all of
them are asked for at the same instant. Together they are larger than half of SGLang's host memory,
which is where its prefetch stops asking. For each case the tokens of all prompts are divided into
those that came (``arrived``), those that SGLang never asked its storage for (``not asked``), those
that it no longer waited for (``too late``) or had no memory for (``dropped``), and those that hexkv
was asked for and did not bring (``not brought``). SGLang's own file backend is the control. The
linker has no prefetch; what it did not bring is hexkv's part.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from benchmarks.rig.machine import describe, load
from engines.sglang.sglang_engines import PAGE, ROOT, Answer, Engine, behind, linked, prompt
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline

PROMPTS, TOKENS = 18, 1709
WHOLE = (TOKENS - 1) // PAGE * PAGE
"""Tokens of a prompt that can come from a cache."""

THRESHOLD = 256
OUTPUT = Path(__file__).resolve().parents[1] / "results" / "sglang_load.json"
_PAUSE = Event()

Settings = Mapping[str, object]


def cases(folder: Path) -> dict[str, Callable[[], Settings]]:
    """The settings of an engine, by name. The pool has room for all prompts, or for four."""
    disk = {"store": "disk", "settings": {"root": str(folder / "disk")}}

    def ours(pool: str = "1GiB", tier: Mapping[str, object] = disk) -> dict[str, object]:
        return {"pool": {"bytes": pool}, "tiers": [tier]}

    def hicache(
        policy: str, ratio: float = 2.0, given: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        # Without hexkv's settings it is SGLang's own file backend.
        backend = "file" if given is None else "dynamic"
        chosen = behind(backend=backend, prefetch_threshold=THRESHOLD, **given or {})
        return {**chosen, "hicache_storage_prefetch_policy": policy, "hicache_ratio": ratio}

    return {
        "file, timeout": lambda: hicache("timeout"),
        "best_effort": lambda: hicache("best_effort", given=ours()),
        "timeout": lambda: hicache("timeout", given=ours()),
        "wait_complete": lambda: hicache("wait_complete", given=ours()),
        "memory, timeout": lambda: hicache("timeout", given=ours(tier={"store": "memory"})),
        "timeout, ratio 8": lambda: hicache("timeout", 8.0, ours()),
        "wait_complete, ratio 8": lambda: hicache("wait_complete", 8.0, ours()),
        "buffer_only": lambda: (
            hicache("timeout", 1.2, ours()) | {"hicache_host_memory_mode": "buffer_only"}
        ),
        "linker": lambda: linked(**ours()),
        "linker, small pool": lambda: linked(**ours("128MiB")),
    }


def run(name: str, settings: Settings, model: Path, folder: Path, rounds: int) -> dict[str, object]:
    """Store all prompts, ask for all at once, *rounds* times; the shares of each round."""
    prompts = [prompt(f"load {number}", TOKENS) for number in range(PROMPTS)]
    files = folder / "files"
    files.mkdir(exist_ok=True)
    env = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(files)}
    found = []
    with Engine(model, folder / "log", env=env, enable_metrics=True, **settings) as engine:
        expected = [engine.generate(words, tokens=4)[0].tokens for words in prompts]
        for _ in range(rounds):
            _rest(engine)
            engine.flush()
            before = _numbers(engine)
            answers = engine.generate(*prompts, tokens=4)
            _PAUSE.wait(1.0)  # SGLang's counters follow its answers
            after = {n: value - before.get(n, 0.0) for n, value in _numbers(engine).items()}
            if [answer.tokens for answer in answers] != expected:
                raise RuntimeError(f"{name}: other tokens than without a hit")
            found.append(_shares(answers, after, linker=name.startswith("linker")))
    return {"rounds": found}


def _numbers(engine: Engine) -> dict[str, float]:
    unused = "storage_prefetch_unfulfilled_tokens"
    return {
        "asked": engine.counted("storage_prefetch_hit_tokens", "sglang:"),
        "deadline": engine.counted(unused, "sglang:", reason="deadline"),
        "unused": engine.counted(unused, "sglang:"),
    }


def _shares(
    answers: Sequence[Answer], counted: Mapping[str, float], *, linker: bool
) -> dict[str, float]:
    whole = PROMPTS * WHOLE
    arrived = sum(answer.cached for answer in answers)
    times = sorted(answer.first_token_seconds for answer in answers)
    asked = whole if linker else round(counted["asked"])
    late, unused = round(counted["deadline"]), round(counted["unused"])
    return {
        "tokens": PROMPTS * TOKENS,
        "storable": whole,
        "arrived": arrived,
        "said to be from storage": sum(answer.storage for answer in answers),
        "not asked": max(0, whole - asked),
        "too late": late,
        "dropped": unused - late,
        "not brought": asked - unused - arrived,
        "median first token, seconds": round(times[len(times) // 2], 2),
    }


def _rest(engine: Engine) -> None:
    """Wait until the engine has counted nothing stored for a second."""
    clock = SystemClock()
    patience, quiet = Deadline.after(clock, 60.0), Deadline.after(clock, 1.0)
    known = -1.0
    while not patience.expired and not quiet.expired:
        now = engine.counted("stored") + engine.counted("backuped_tokens", "sglang:")
        if now != known:
            known, quiet = now, Deadline.after(clock, 1.0)
        _PAUSE.wait(0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what *arguments* ask for, add it to the results. The exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+", choices=list(cases(Path())))
    parser.add_argument("--rounds", type=int, default=3, help="after each start")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    model = ROOT / "build" / "tiny-llama"
    script = ROOT / "adapters" / "vllm" / "e2e" / "tiny_llama.py"
    subprocess.run([sys.executable, str(script), str(model)], check=True)
    known = json.loads(asked.output.read_text())["cases"] if asked.output.exists() else {}
    for name in asked.case or list(cases(Path())):
        with tempfile.TemporaryDirectory(prefix="load-", dir=ROOT / "build") as scratch:
            machine = describe(Path(scratch))
            settings = cases(Path(scratch))[name]()
            known[name] = run(name, settings, model, Path(scratch), asked.rounds)
        known[name]["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        known[name]["load"] = [machine["load_before"], load()]
        result = {"machine": machine, "prompts": PROMPTS, "page_tokens": PAGE, "cases": known}
        asked.output.write_text(json.dumps(result, indent=1) + "\n")
        for share in known[name]["rounds"]:
            print(f"{name:24}", share, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
