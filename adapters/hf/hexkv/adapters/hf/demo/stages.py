"""The two processes of the demo: ``python -m hexkv.adapters.hf.demo.stages STAGE PLAN``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.utils import logging

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.demo.plan import CHUNK, TRAINED, DemoPlan, report
from hexkv.adapters.hf.demo.subject import subject
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.schema import EngineSettings
from hexkv.ports import HexKVError, Namespace, frame_bytes


def first(plan: DemoPlan) -> None:
    """Compute without the cache, store, report that, and wait to be killed."""
    model, prompt = _prepare(plan)
    report("step", text=f"computing {len(prompt)} tokens")
    seconds, logits, cache = _plain(model, prompt)
    new = _continue(model, logits, cache, plan.new_tokens)
    report("step", text="storing their KV in memory and on disk")
    namespace = namespace_of_model(model)
    engine = build(_settings(plan, namespace), namespace)
    began = time.perf_counter()
    stored = CachedModel(model, engine).save(prompt, cache)
    report(
        "acknowledged",
        seconds=seconds,
        store_seconds=time.perf_counter() - began,
        stored_tokens=stored,
        tokens=new,
    )
    # The engine is not closed: the parent kills this process here. Should the parent itself
    # be gone, the end of its pipe ends this process as well.
    sys.stdin.read()


def second(plan: DemoPlan) -> None:
    """Measure the same prompt without the cache, from disk, and from memory."""
    model, prompt = _prepare(plan)
    report("step", text=f"computing {len(prompt)} tokens without the cache")
    seconds, logits, cache = _plain(model, prompt)
    new = _continue(model, logits, cache, plan.new_tokens)
    report("measured", run="without", seconds=seconds, prompt_tokens=len(prompt), tokens=new)
    namespace = namespace_of_model(model)
    with build(_settings(plan, namespace), namespace) as engine:
        _hits(plan, CachedModel(model, engine), model, prompt, logits)


def _hits(
    plan: DemoPlan,
    cached: CachedModel,
    model: PreTrainedModel,
    prompt: Sequence[int],
    expected: torch.Tensor,
) -> None:
    """The disk first: a chunk from there is in memory from then on."""
    for run in ("disk", "memory"):
        report("step", text=f"the same prompt from {run}")
        began = time.perf_counter()
        prefill = cached.prefill(prompt, room=plan.new_tokens)
        int(prefill.logits.argmax())
        seconds = time.perf_counter() - began
        new = _continue(model, prefill.logits, prefill.cache, plan.new_tokens)
        report(
            "measured",
            run=run,
            seconds=seconds,
            load_seconds=prefill.load_seconds,
            compute_seconds=prefill.compute_seconds,
            hit_tokens=prefill.hit_tokens,
            tier_tokens=prefill.tiers.get(run, 0),
            loaded_bytes=prefill.loaded_bytes,
            tokens=new,
            logits_differ_by=float((prefill.logits - expected).abs().max()),
        )


def _prepare(plan: DemoPlan) -> tuple[PreTrainedModel, list[int]]:
    report("step", text=f"loading the model ({plan.model or TRAINED})")
    model, prompt = subject(plan)
    # The first calls of a process pay for threads and code paths; no run shall pay for others.
    few = prompt[: CHUNK // 2]
    for _ in range(2):
        _, logits, cache = _plain(model, few)
        _continue(model, logits, cache, 2)
    return model, prompt


def _settings(plan: DemoPlan, namespace: Namespace) -> EngineSettings:
    frame = frame_bytes(namespace.layout.chunk_bytes(CHUNK))
    disk = {"store": "disk", "settings": {"root": plan.chunks}}
    return EngineSettings.model_validate(
        {
            "chunk": {"size": CHUNK},
            # Every chunk in memory, and some room for those on their way.
            "pool": {"bytes": (plan.tokens // CHUNK + 16) * frame},
            "tiers": ({"store": "memory"}, disk),
        }
    )


def _plain(
    model: PreTrainedModel, prompt: Sequence[int]
) -> tuple[float, torch.Tensor, DynamicCache]:
    """Time to the first token without hexkv, the logits it comes from, and the KV."""
    cache = DynamicCache()
    began = time.perf_counter()
    logits = _forward(model, prompt, cache)
    int(logits.argmax())
    return time.perf_counter() - began, logits, cache


def _continue(
    model: PreTrainedModel, logits: torch.Tensor, cache: DynamicCache, count: int
) -> list[int]:
    """*count* greedy tokens."""
    new = [int(logits.argmax())]
    while len(new) < count:
        new.append(int(_forward(model, new[-1:], cache).argmax()))
    return new


def _forward(model: PreTrainedModel, tokens: Sequence[int], cache: DynamicCache) -> torch.Tensor:
    with torch.no_grad():
        output = model(
            input_ids=torch.tensor([list(tokens)]),
            **with_cache(model, cache),
            use_cache=True,
            logits_to_keep=1,
        )
    logits: torch.Tensor = output.logits[0, -1]
    return logits


def main(arguments: Sequence[str]) -> int:
    """Run one stage; gives the exit code."""
    name, plan = arguments
    # The parent shows the progress.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        {"first": first, "second": second}[name](DemoPlan.from_json(plan))
    except (HexKVError, OSError) as error:
        report("refused", text=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
