"""``python phase.py SETTINGS``: one vLLM engine in a process, told what to do line by line.

SETTINGS is a JSON object, the arguments of ``vllm.LLM``. Each line on stdin is a JSON object with
the name of a task and its arguments; its result is a line on stdout. Everything else that vLLM
prints goes to stderr. The end of stdin ends the engine.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from hook_clock import HookClock

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch.nn import Module
    from vllm import LLM, RequestOutput
    from vllm.inputs import PromptType

    from hexkv.ports import PrefixCache

Json = dict[str, object]

_WHILE = 0.3


class Phase:
    """The tasks. Their names and arguments are what a line on stdin says."""

    def __init__(self, llm: LLM) -> None:
        self._engine = llm.llm_engine
        self._reset = llm.reset_prefix_cache
        self._numbers = count()
        self._llm = llm
        self._hooks: HookClock | None = None
        self._step: object = None
        self._begun: list[list[int]] = []

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        extra: Json | None,
        lora: Json | None = None,
        images: Sequence[Sequence[int]] | None = None,
        embedded: bool = False,
        salt: str = "",
    ) -> Json:
        """Run all *prompts* at once; for each what came out, what was cached, and when.

        A *salt* is that of a tenant, whose prompts they all are.

        *Images* are the seeds of those of each prompt, in the order of their placeholders. Prompts
        that are *embedded* are seeds of embeddings, and how many, instead of tokens.

        ``hook_seconds`` is the connector's part of the time to the last first token, in an engine
        that is watched.
        """
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        adapter = None if lora is None else LoRARequest(**lora)

        wanted = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, logprobs=1, extra_args=extra
        )
        names = [str(next(self._numbers)) for _ in prompts]
        hooks = self._in_hooks()
        busy, began = _cpu_seconds(), time.perf_counter()
        for place, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
            if embedded:
                asked = self._embeddings(*prompt)
            else:
                asked = _asked(prompt, images[place] if images else (), salt)
            self._engine.add_request(name, asked, wanted, lora_request=adapter)
        first: dict[str, float] = {}
        hooked = 0.0
        done: dict[str, RequestOutput] = {}
        steps = 0
        while self._engine.has_unfinished_requests():
            steps += 1
            for output in self._engine.step():
                if output.outputs[0].token_ids and output.request_id not in first:
                    first[output.request_id] = time.perf_counter() - began
                    hooked = self._in_hooks() - hooks
                if output.finished:
                    done[output.request_id] = output
        return {
            "steps": steps,
            "seconds": time.perf_counter() - began,
            "cpu_seconds": _cpu_seconds() - busy,
            "hook_seconds": hooked,
            "answers": [_answer(done[name], first.get(name)) for name in names],
        }

    def _embeddings(self, seed: int, count: int) -> PromptType:
        import torch
        from vllm.inputs import EmbedsPrompt

        config = self._engine.model_config
        dice = torch.Generator().manual_seed(seed)
        drawn = torch.randn(count, config.get_hidden_size(), generator=dice)
        return EmbedsPrompt(prompt_embeds=drawn)

    def _in_hooks(self) -> float:
        return self._hooks.seconds if self._hooks else 0.0

    def watch(self) -> Json:
        """From now on take the time that the connector's hooks take."""
        self._hooks = HookClock(self._llm)
        return {"hooks": self._hooks.count}

    def watch_layers(self) -> Json:
        """From now on note how many parts of a step have begun to be stored after each layer."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        half = get_kv_transfer_group()._worker.half
        computed, early = half.computed_layer, half._saving._early

        def noted(step: object, name: str) -> None:
            computed(step, name)
            if not self._begun or early._current.step is not self._step:
                self._step = early._current.step
                self._begun.append([])
            self._begun[-1].append(sum(map(len, early._current.begun.values())))

        half.computed_layer = noted
        return {}

    def layers(self) -> Json:
        """By step, the number of parts that had begun when each layer was computed."""
        return {"begun": self._begun}

    def reset(self) -> Json:
        """Forget vLLM's own prefix cache; the connector keeps what it has."""
        return {"reset": self._reset()}

    def call(self, method: str, arguments: Json) -> Json:
        """Have the workers do something."""
        self._llm.collective_rpc(method, kwargs=arguments)
        return {}

    def scale(self, factor: float) -> Json:
        """Multiply all weights by *factor*, in ways that PyTorch does not count."""
        self._llm.apply_model(partial(_scale, factor=factor))
        return {}

    def sleep(self, level: int) -> Json:
        """Sleep and wake up, as far as the device can."""
        self._llm.sleep(level=level)
        return {"awake": self._llm.wake_up()}

    def rest(self, seconds: float) -> Json:
        """Wait until the engine has done almost nothing for a while: what it stores is stored.

        ``cpu_seconds`` are those of its processes since they began.
        """
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            busy = _cpu_seconds()
            time.sleep(_WHILE)
            if _cpu_seconds() - busy < _WHILE / 10:
                return {"rested": True, "cpu_seconds": busy}
        return {"rested": False}

    def flush(self, seconds: float) -> Json:
        """Wait until hexkv has written what it was given to store, on every rank."""
        return {"flushed": all(self._llm.collective_rpc(_flush, args=(seconds,)))}

    def metrics(self) -> Json:
        """Every counter of vLLM's own registry by its name, summed over its labels."""
        from prometheus_client import REGISTRY

        found: dict[str, float] = {}
        for metric in REGISTRY.collect():
            for sample in metric.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return dict(found)

    def samples(self) -> list[object]:
        """Every sample of hexkv's in vLLM's own registry: its name, its labels and its value."""
        from prometheus_client import REGISTRY

        return [
            [sample.name, sample.labels, sample.value]
            for metric in REGISTRY.collect()
            for sample in metric.samples
            if sample.name.startswith("vllm:hexkv_")
        ]

    def forget(self, prompt: Sequence[int], tiers: Sequence[str]) -> Json:
        """Delete the chunks of *prompt* from *tiers* of every rank."""
        return {"chunks": self._llm.collective_rpc(_forget, args=(list(prompt), list(tiers)))}


def _scale(model: Module, factor: float) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(factor)


def _forget(worker: object, prompt: Sequence[int], tiers: Sequence[str]) -> int:
    return int(_engine(worker).clear(prompt, tiers=tiers).chunks)


def _flush(worker: object, seconds: float) -> bool:
    """In a worker's process, after the steps that it was given before: their saves first."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    beside = getattr(get_kv_transfer_group(), "_worker", None)
    saved = beside is None or beside.half._saving.wait(seconds)
    return bool(saved and _engine(worker).flush(seconds))


def _engine(worker: object) -> PrefixCache:
    """The engine of this process."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    del worker
    connector = get_kv_transfer_group()
    if hasattr(connector, "_worker"):
        engine: PrefixCache = connector._worker.half._engine
    else:  # behind vLLM's offloading
        engine = connector.connector_worker.worker._held._engine
    return engine


def _asked(words: Sequence[int], images: Sequence[int], salt: str) -> PromptType:
    from vllm.inputs import TokensPrompt

    if salt:
        return TokensPrompt(prompt_token_ids=list(words), cache_salt=salt)
    if not images:
        return TokensPrompt(prompt_token_ids=list(words))
    seen = {"image": [_image(seed) for seed in images]}
    return TokensPrompt(prompt_token_ids=list(words), multi_modal_data=seen)


def _image(seed: int) -> Image:
    """Noise, of always the same size."""
    import PIL.Image

    return PIL.Image.frombytes("RGB", (128, 128), random.Random(seed).randbytes(128 * 128 * 3))


def _answer(output: RequestOutput, first: float | None) -> Json:
    [completion] = output.outputs
    chosen = zip(completion.token_ids, completion.logprobs or [], strict=False)
    return {
        "tokens": list(completion.token_ids),
        "logprobs": [likely[token].logprob for token, likely in chosen],
        "cached": output.num_cached_tokens or 0,
        "finish": completion.finish_reason,
        "first_token_seconds": first,
        "params": output.kv_transfer_params,
    }


def _cpu_seconds() -> float:
    """Of this process and of its workers."""
    total = time.process_time()
    ticks = os.sysconf("SC_CLK_TCK")
    for child in _children(os.getpid()):
        with open(f"/proc/{child}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        near = [int(child) for child in file.read().split()]
    return near + [far for child in near for far in _children(child)]


def _settings() -> Json:
    """Those of this process, once vLLM knows what they name."""
    settings: Json = json.loads(sys.argv[1])
    if settings.get("load_format") == "drawn":
        import drawn  # noqa: F401 # makes vLLM know the format
    return settings


def main() -> None:
    """Start the engine and do what stdin says."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from vllm import LLM, __version__

    phase = Phase(LLM(**_settings()))
    tasks: dict[str, Callable[..., Json]] = {
        "generate": phase.generate,
        "watch": phase.watch,
        "watch_layers": phase.watch_layers,
        "layers": phase.layers,
        "reset": phase.reset,
        "call": phase.call,
        "scale": phase.scale,
        "sleep": phase.sleep,
        "rest": phase.rest,
        "flush": phase.flush,
        "metrics": phase.metrics,
        "samples": phase.samples,
        "forget": phase.forget,
    }
    print(json.dumps({"pid": os.getpid(), "vllm": __version__}), file=answers)
    for line in sys.stdin:
        arguments = json.loads(line)
        print(json.dumps(tasks[arguments.pop("task")](**arguments)), file=answers)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # the engine's core, in a process that was not forked
    _settings()
