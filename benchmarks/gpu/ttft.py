"""Time to the first token of a long prompt: computed, and loaded from the pool's pinned memory.

A model of transformers with random weights where transformers is there, else a stack of attention
in plain torch. Times hardly depend on what the weights are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple

import torch

from benchmarks.gpu.stack import Stack
from benchmarks.gpu.timing import Rate, Size, Value, bare_copy, on_gpu, share, synchronise, timed
from hexkv.adapters.cuda.streams import CudaKV
from hexkv.api import DType, KVLayout, PrefixCache, open_cache


@dataclass(frozen=True, slots=True)
class Model:
    """A dense decoder with grouped-query attention; the default has 3.2 billion weights."""

    layers: int = 28
    hidden: int = 3072
    inner: int = 8192
    heads: int = 24
    kv_heads: int = 8
    width: int = 128
    vocabulary: int = 128_256
    tokens: int = 32_768
    ends: int = 64
    """Tokens behind the cached prefix, which are computed in any case."""

    repeats: int = 3

    @property
    def layout(self) -> KVLayout:
        return KVLayout.attention(
            DType.BFLOAT16, layers=self.layers, heads=self.kv_heads, key_width=self.width
        )


COPY = "one copy from pinned memory"
LOAD = 0.95
"""Of that copy's speed: the goal of loading."""

TINY = Model(2, 64, 128, 4, 2, 16, 512, 512, 8, 1)


class Laps:
    """The milliseconds of the parts of an answer, each with the work of the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._began = time.perf_counter()
        self.parts: dict[str, float] = {}

    def over(self, part: str) -> None:
        """Note that *part* is over."""
        synchronise(self._device)
        now = time.perf_counter()
        self.parts[part] = 1e3 * (now - self._began)
        self._began = now


def ttft(device: torch.device, size: Size) -> Iterator[Rate | Value]:
    model = TINY if size.layers <= 2 else Model()
    torch.manual_seed(0)
    prompt = torch.randint(model.vocabulary, (model.tokens + model.ends,)).tolist()
    room = 2 * model.layout.chunk_bytes(model.tokens) + (64 << 20)
    config = {"pool": {"bytes": room, "provider": "pinned"}, "tiers": [{"store": "memory"}]}
    # transformers asks what there is as it is imported; both kinds are tried where both are.
    kinds = [("plain torch", _plain)]
    if find_spec("transformers"):
        kinds.insert(0, ("transformers", _transformers))
    for name, make in kinds:
        with open_cache(config, model=name.replace(" ", "-"), layout=model.layout) as cache:
            first = make(model, device, cache)
            yield from _timed(name, model, device, prompt, first)
        if on_gpu(device):
            torch.cuda.empty_cache()


class Answer(NamedTuple):
    """The first token of a prompt, and the milliseconds that its parts took."""

    token: int
    loaded: int
    parts: Mapping[str, float]


First = Callable[[list[int], bool], Answer]
"""Answers a prompt, with the cache or without."""


def _timed(
    name: str, model: Model, device: torch.device, prompt: list[int], first: First
) -> Iterator[Rate | Value]:
    first(prompt[: model.ends * 2], False)  # compiled, and memory taken
    took: dict[bool, list[float]] = {False: [], True: []}
    answers: dict[bool, set[int]] = {False: set(), True: set()}
    split: dict[str, list[float]] = {}
    bare, copy, region = bare_copy(device, model.layout.chunk_bytes(model.tokens))
    copies: list[float] = []
    first(prompt[: model.tokens], True)  # stores the prefix
    for _ in range(model.repeats):
        for cached in (False, True):
            synchronise(device)
            began = time.perf_counter()
            token, loaded, parts = first(prompt, cached)
            synchronise(device)
            took[cached].append(time.perf_counter() - began)
            answers[cached].add(token)
            for part in parts if cached else ():
                split.setdefault(part, []).append(parts[part])
            if cached:
                copies.append(timed(device, copy))
            wanted = model.tokens if cached else 0
            assert loaded == wanted, f"{loaded} tokens were loaded, not {wanted}"
    # In 16 bits, kernels for other lengths may round another way: reported, and no failure.
    same = answers[False] == answers[True]
    computed, loaded_s = (statistics.median(took[cached]) for cached in (False, True))
    what = f"{name}, {model.tokens:,} tokens"
    loads = [part / 1e3 for part in split["load"]]
    moved = model.layout.chunk_bytes(model.tokens)
    yield share(f"{what}: load", COPY, (loads, moved), (copies, bare), LOAD)
    del region
    if model is TINY:
        yield Value(f"{what}: loaded, and the first token is the same", same)
        return
    yield Value(f"{what}: ms without cache", round(1e3 * computed, 1))
    yield Value(f"{what}: ms with it", round(1e3 * loaded_s, 1))
    for part, each in split.items():
        yield Value(f"{what}: ms of the {part}", round(statistics.median(each), 1))
    yield Value(f"{what}: times sooner", round(computed / loaded_s, 2))
    yield Value(f"{what}: GB loaded", round(moved / 1e9, 2))
    yield Value(f"{what}: the first token is the same", same)


def _plain(model: Model, device: torch.device, cache: PrefixCache) -> First:
    stack = Stack(model, device)
    windows = CudaKV(device)
    slots = stack.slots(model.tokens + model.ends)

    def first(prompt: list[int], cached: bool) -> Answer:
        hit, clock = 0, Laps(device)
        window = windows.paged(model.layout, stack.pages, slots[: len(prompt)])
        clock.over("window")
        if cached:
            hit = min(cache.retrieve(prompt, window).hit_tokens, len(prompt) - 1)
            clock.over("load")
        token = stack.first(prompt, slots, hit)
        clock.over("tail")
        if cached and not hit:
            cache.store(prompt, window)
        return Answer(token, hit, clock.parts)

    return first


def _transformers(model: Model, device: torch.device, cache: PrefixCache) -> First:
    from transformers import LlamaConfig, LlamaForCausalLM

    from hexkv.adapters.hf.model import CachedModel

    config = LlamaConfig(
        vocab_size=model.vocabulary,
        hidden_size=model.hidden,
        intermediate_size=model.inner,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.width,
        max_position_embeddings=2 * model.tokens,
        dtype="bfloat16",
    )
    with torch.device(device):
        made = LlamaForCausalLM(config).to(torch.bfloat16).eval()  # type: ignore[arg-type] # of a wrapper
    under = CachedModel(made, cache)

    def first(prompt: list[int], cached: bool) -> Answer:
        if cached:
            found, clock = under.prefill(prompt), Laps(device)
            token = int(found.logits.argmax())  # which waits for the model
            clock.over("tail")
            clock.parts["tail"] += 1e3 * found.compute_seconds
            # The window is made within.
            return Answer(token, found.hit_tokens, {"load": 1e3 * found.load_seconds} | clock.parts)
        with torch.no_grad():
            ids = torch.tensor([prompt], device=device)
            logits = made(input_ids=ids, logits_to_keep=1).logits
        return Answer(int(logits[0, -1].argmax()), 0, {})

    return first
