"""Real SGLang engines for tests and benchmarks, each in a process of its own.

The process runs ``adapters/sglang/e2e/phase.py``, which says what can be asked of it.
"""

import json
import os
import queue
import random
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from hexkv.plugins.discovery.algorithms import frame_codec
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import CorruptFrame
from processes import kill_session, signal_session

ROOT = Path(__file__).parents[4]
ADAPTER = ROOT / "adapters" / "sglang"
PATIENCE = 600.0
"""Seconds after which an engine that says nothing counts as dead."""

PAGE = 64
PAGES = 10
TOKENS = PAGES * PAGE + 9
"""Of a prompt: ten pages, and some tokens that are always computed."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
    "PYTHONPATH": str(ADAPTER / "tests_sglang" / "rig"),
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
SETTINGS = {
    "attention_backend": "torch_native",
    "context_length": 4096,
    "device": "cpu",
    "disable_overlap_schedule": True,
    "dtype": "float32",
    "enable_cache_report": True,
    "log_level": "info",
    "max_running_requests": 8,
    "max_total_tokens": 8192,
    "page_size": PAGE,
    "sampling_backend": "pytorch",
    "skip_tokenizer_init": True,
}

PATIENT = {"lookup": 60.0, "retrieve": 60.0, "store": 60.0}
"""Deadlines. What a busy machine takes its time for is no miss, and is not dropped."""

DYNAMIC = {
    "backend_name": "hexkv",
    "module_path": "hexkv.adapters.sglang.hicache",
    "class_name": "HexKVStorage",
    "interface_v1": 1,
}
"""How SGLang's extra configuration names the backend."""


def prompt(seed, tokens=TOKENS):
    """Words of the tiny model, always the same for one *seed*."""
    dice = random.Random(seed)
    return [dice.randrange(2, 4096) for _ in range(tokens)]


def environment(**more):
    """This process's environment without any configuration of hexkv or SGLang, and *more*."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEXKV_", "SGLANG_"))
    }
    return inherited | ENVIRONMENT | more


def patient(extra):
    """With patient deadlines a busy disk brings pages however late, as the toys compute sooner."""
    if "deadlines" in extra and "node" not in extra:
        return {"compute_rate": 1e-3} | extra
    return extra


def hierarchical(order="page_first_direct", io="direct"):
    """The settings of an engine whose prefixes go on to host memory, and no further."""
    return {
        "enable_hierarchical_cache": True,
        "hicache_ratio": 2.0,
        "hicache_mem_layout": order,
        "hicache_io_backend": io,
    }


def behind(order="page_first_direct", io="direct", backend="dynamic", **extra):
    """The settings of an engine with hexkv behind its hierarchical cache."""
    chosen = {"prefetch_threshold": PAGE} | (DYNAMIC if backend == "dynamic" else {})
    chosen |= patient(extra)
    return hierarchical(order, io) | {
        "hicache_storage_backend": backend,
        "hicache_storage_prefetch_policy": "wait_complete",
        "hicache_storage_backend_extra_config": json.dumps(chosen),
    }


def linked(module="hexkv.adapters.sglang.linker", name="HexKVLinker", **extra):
    """The settings of an engine with hexkv right behind its device."""
    chosen = {
        "linker": name,
        "linker_module_path": module,
        "linker_extra_config": patient(extra),
    }
    return {
        "enable_unified_cache_external_linker": True,
        "unified_cache_external_linker_backend": "dynamic",
        "unified_cache_external_linker_config": chosen,
    }


def frames(root):
    """The files of a disk tier."""
    return set(root.glob("??/*.hexkv"))


def sound(file):
    """Whether the file is a frame, every byte as it was sealed."""
    try:
        frame_codec(discover(), "xxh3-128").open(memoryview(file.read_bytes()))
    except (CorruptFrame, FileNotFoundError):
        return False
    return True


@dataclass(frozen=True)
class Answer:
    """What one prompt got."""

    tokens: list
    cached: int
    """Tokens of the prompt that were not computed."""
    host: int
    """Of these, what came from host memory: with the linker, all that came from hexkv."""
    storage: int
    """Of these, what came from hexkv, as SGLang counts it behind the hierarchical cache."""
    first_token_seconds: float
    began: float
    """When it was asked, by the clock that all processes share."""


class Engine:
    """One engine. Ends with the ``with`` block, together with every process it started."""

    def __init__(self, model, log, *, env=None, python=sys.executable, **settings):
        arguments = SETTINGS | {"model_path": str(model)} | settings
        self.log = Path(log)
        self._numbers = self.log.with_name(f"{self.log.name}-numbers")
        self._numbers.mkdir(exist_ok=True)
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, str(ADAPTER / "e2e" / "phase.py"), json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(PROMETHEUS_MULTIPROC_DIR=str(self._numbers), **env or {}),
                text=True,
                start_new_session=True,
            )
        self._raw = queue.SimpleQueue()
        Thread(target=self._listen, daemon=True).start()
        try:
            assert self._hear()["pid"] == self._process.pid
        except BaseException:
            self.kill()
            raise

    def _listen(self):
        with self._process.stdout as lines:
            for line in lines:
                self._raw.put(line)
        self._raw.put(None)

    def _hear(self):
        try:
            line = self._raw.get(timeout=PATIENCE)
        except queue.Empty:
            line = None
        if line is None:
            raise AssertionError(f"the engine is gone, or hangs:\n{self.tail()}")
        return json.loads(line)

    def _ask(self, **task):
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def generate(self, *prompts, tokens=8):
        """The answers to *prompts*, which run at once."""
        return [Answer(**answer) for answer in self._ask(prompts=prompts, tokens=tokens)]

    def flush(self):
        """Forget what device and host memory hold."""
        assert self._ask(flush=True)

    def update(self, file):
        """Replace weights by the tensors of *file*, without a version of them."""
        assert self._ask(update=str(file))

    def counted(self, name, prefix="hexkv_", **labels):
        """What all processes of an engine with ``enable_metrics`` counted as ``hexkv_NAME``."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(self._numbers))
        samples = [sample for metric in registry.collect() for sample in metric.samples]
        wanted = f"{prefix}{name}_total"
        found = [s for s in samples if s.name == wanted and labels.items() <= s.labels.items()]
        return sum(sample.value for sample in found)

    def cpu_seconds(self):
        """What its processes have used of the processor."""
        ticks = 0
        for place in Path("/proc").glob("[0-9]*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = place.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self._process.pid:
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def tail(self):
        """The end of the log."""
        return self.log.read_text(errors="replace")[-6000:]

    def said(self, text):
        """Whether *text* is in the log so far."""
        return text in self.log.read_text(errors="replace")

    def pause(self):
        """Take the processor from it. An idle SGLang asks for work without a rest."""
        signal_session(self._process, signal.SIGSTOP)

    @contextmanager
    def awake(self):
        """Let it run in the ``with`` block only."""
        signal_session(self._process, signal.SIGCONT)
        yield self
        self.pause()

    def kill(self):
        """As a machine goes down: every process of the engine's session, at once."""
        kill_session(self._process)
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
