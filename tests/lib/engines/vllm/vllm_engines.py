"""Real vLLM engines for tests and benchmarks, each in a process of its own.

The process runs ``adapters/vllm/e2e/phase.py``, which says what can be asked of it.
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
from functools import partial
from pathlib import Path
from threading import Thread

from processes import ended, kill_session, signal_session, until

ROOT = Path(__file__).parents[4]
E2E = ROOT / "adapters" / "vllm" / "e2e"
PATIENCE = 600.0
"""Seconds after which an engine that says nothing counts as dead."""

BLOCK = 32
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # One process less to start, and whoever measures sees the steps.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Bound to cores, an engine with a connector gets others than one without.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
    # Counting the likelier tokens is compiled otherwise, for 15 seconds.
    "TORCHDYNAMO_DISABLE": "1",
}
SETTINGS = {
    "dtype": "float32",
    "max_model_len": 4096,
    "block_size": BLOCK,
    "enforce_eager": True,
    "disable_log_stats": False,
    # With it a hit may be vLLM's own; tests that want both say so.
    "enable_prefix_caching": False,
}


PATIENT = {
    "deadlines": {"lookup": 60.0, "retrieve": 60.0, "store": 60.0},
    "lookup_seconds": 60.0,
}
"""What a busy machine takes its time for is no miss, and is not dropped."""


def prompt(seed, tokens):
    """Words of the tiny model, always the same for one *seed*; longer ones begin like shorter."""
    dice = random.Random(seed)
    return [dice.randrange(2, 4096) for _ in range(tokens)]


def environment(**more):
    """What an engine's process sees: nothing of how this one is configured."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("HEXKV_", "VLLM_"))}
    return inherited | ENVIRONMENT | more


def connector(config=None, *, by_name=False, **extra):
    """vLLM's ``kv_transfer_config`` for hexkv, configured by *config*, hexkv's own tree."""
    chosen = {"kv_connector": "HexKVConnector", "kv_role": "kv_both"}
    if not by_name:
        chosen["kv_connector_module_path"] = "hexkv.adapters.vllm.connector"
    chosen["kv_load_failure_policy"] = "recompute"
    tree = {**(config or {}), **extra}
    if "deadlines" in tree and "node" not in tree:  # PATIENT: a busy disk brings KV, however late
        tree.setdefault("compute_rate", 1e-3)
    chosen["kv_connector_extra_config"] = tree
    return chosen


def offloading(config, **extra):
    """The same for hexkv behind vLLM's own OffloadingConnector."""
    spec = {
        "spec_name": "HexKVOffloadingSpec",
        "spec_module_path": "hexkv.adapters.vllm.offloading",
    }
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {**spec, **extra, "hexkv": PATIENT | config},
    }


@dataclass(frozen=True)
class Answer:
    """What one prompt got."""

    tokens: list
    logprobs: list
    cached: int
    """Tokens of the prompt that were not computed."""
    finish: str
    first_token_seconds: float | None
    params: dict | None = None
    """What a router is to pass on, its ``kv_transfer_params``."""


class Engine:
    """One engine. Ends with the ``with`` block, together with every process it started."""

    def __init__(
        self,
        model,
        log,
        *,
        transfer=None,
        env=None,
        python=sys.executable,
        patience=PATIENCE,
        **settings,
    ):
        arguments = SETTINGS | {"model": str(model)} | settings
        if transfer is not None:
            arguments["kv_transfer_config"] = transfer
        self.log, self._patience = Path(log), patience
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, str(E2E / "phase.py"), json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(**(env or {})),
                text=True,
                start_new_session=True,
            )
        self._raw = queue.SimpleQueue()
        Thread(target=self._listen, daemon=True).start()
        self.last = {}
        """What the last call of ``generate`` took."""
        try:
            hello = self._hear()
            assert hello["pid"] == self._process.pid
        except BaseException:
            self.kill()
            raise
        self.version = hello["vllm"]

    def _listen(self):
        with self._process.stdout as lines:
            for line in lines:
                self._raw.put(line)
        self._raw.put(None)

    def _hear(self):
        try:
            line = self._raw.get(timeout=self._patience)
        except queue.Empty:
            line = None
        if line is None:
            tail = self.log.read_text(errors="replace")[-6000:]
            raise AssertionError(f"the engine is gone, or hangs:\n{tail}")
        return json.loads(line)

    def ask(self, task, **arguments):
        """Have a task of ``phase.Phase`` done."""
        self._process.stdin.write(json.dumps({"task": task, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def generate(
        self, *prompts, tokens=8, extra=None, lora=None, images=None, embedded=False, salt=""
    ):
        """The answers to *prompts*, which run at once. Totals are in ``last``."""
        asked = {"prompts": prompts, "tokens": tokens, "extra": extra, "lora": lora or None}
        self.last = self.ask("generate", **asked, images=images, embedded=embedded, salt=salt)
        return [Answer(**answer) for answer in self.last["answers"]]

    def metrics(self):
        """vLLM's counters, summed over labels."""
        return self.ask("metrics")

    def samples(self):
        """What vLLM's page says of hexkv, without vLLM's own labels: by name, then by labels."""
        found = {}
        for name, labels, value in self.ask("samples"):
            own = {k: v for k, v in labels.items() if k not in ("model_name", "engine", "rank")}
            found.setdefault(name.removeprefix("vllm:hexkv_"), {})[tuple(own.values())] = value
        return found

    def forget(self, prompt, *tiers):
        """Delete the chunks of *prompt* from *tiers*. How many went, on each rank."""
        return self.ask("forget", prompt=prompt, tiers=tiers)["chunks"]

    def watch(self):
        """From now on ``last`` says how long the connector's hooks took."""
        self.ask("watch")

    def watch_layers(self):
        """From now on ``layers`` says what is stored while a step computes."""
        self.ask("watch_layers")

    def layers(self):
        """By step, the number of parts that had begun to be stored after each layer."""
        return self.ask("layers")["begun"]

    def reset(self):
        """Forget vLLM's own prefix cache."""
        assert self.ask("reset")["reset"]

    def call(self, method, **arguments):
        """Have the workers do something."""
        self.ask("call", method=method, arguments=arguments)

    def sleep(self, level):
        """Sleep and wake up."""
        assert self.ask("sleep", level=level)["awake"]

    def rest(self):
        """Wait until nothing is under way, whatever there is beside the engine.

        Return the CPU seconds that it has taken since it began.
        """
        rest = self.ask("rest", seconds=PATIENCE / 5)
        assert rest["rested"]
        return rest["cpu_seconds"]

    def flush(self):
        """Wait until hexkv has written what it was given to store, on every rank."""
        assert self.ask("flush", seconds=PATIENCE / 5)["flushed"]

    def said(self, text):
        """Whether *text* is in the log so far."""
        return text in self.log.read_text(errors="replace")

    def close(self):
        """End as a program ends: what is under way is finished first."""
        self._process.stdin.close()
        try:
            with suppress(AssertionError):  # it hangs, and its code is that of being killed
                until(partial(ended, self._process), PATIENCE)
        finally:
            self.kill()
        assert self._process.returncode == 0, self.log.read_text(errors="replace")[-6000:]

    def pause(self):
        """Take the processor from it. Some engines' threads never rest."""
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

    def __exit__(self, kind, *_):
        if kind is None and not ended(self._process):
            self.close()
        else:
            self.kill()


class Reference:
    """What prompts get from an *engine* without a connector, each alone."""

    def __init__(self, engine):
        self._engine = engine
        self._known = {}

    def __call__(self, *prompts):
        for prompt in map(tuple, prompts):
            if prompt not in self._known:
                [self._known[prompt]] = self._engine.generate(prompt)
        return [self._known[tuple(prompt)] for prompt in prompts]

    def at_once(self, *prompts):
        """The same of many prompts, which do not wait for each other."""
        known = zip(map(tuple, prompts), self._engine.generate(*prompts), strict=True)
        self._known.update(known)
        return self(*prompts)

    def same(self, engine, *prompts, salt=""):
        """Run *prompts* at once: they get the same. How many tokens of each were cached."""
        answers = engine.generate(*prompts, salt=salt)
        assert agree(answers, self(*prompts))
        return [answer.cached for answer in answers]


def agree(answers, expected):
    """Whether the same tokens came out, for the same reasons: log probabilities to 1e-5."""
    assert len(answers) == len(expected)
    for answer, want in zip(answers, expected, strict=True):
        assert answer.finish == "length"
        assert answer.tokens == want.tokens
        for one, other in zip(answer.logprobs, want.logprobs, strict=True):
            assert abs(one - other) <= 1e-5
    return True
