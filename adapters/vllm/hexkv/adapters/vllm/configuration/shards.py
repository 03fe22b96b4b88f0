"""The place of a rank's KV in the model's, and its cut where other numbers of ranks share it.

A model's KV is cut into equal parts by KV heads and by layers. A shard is one part of each chunk,
under a key and in a frame of its own, whether a rank that has just this much stores it or one
that has several. It lies in vLLM's memory as a range of layers and a range of heads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from hexkv.adapters.vllm.configuration.identity import Rank
from hexkv.adapters.vllm.configuration.inspection import Memory
from hexkv.adapters.vllm.configuration.settings import ShardSettings
from hexkv.adapters.vllm.configuration.windows import LayerShape
from hexkv.ports import ConfigError, ParallelSlice

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")

_CUTTABLE = 4
"""Dimensions of ``[blocks, heads, tokens, content]``, the tensors in which heads lie apart."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a rank's KV that is stored alone."""

    piece: ParallelSlice
    """Its place among the model's shards."""

    layers: tuple[str, ...]
    """Names of its layers, in the order of the rank's."""

    heads: range
    """Its heads among the KV heads of the rank."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers of a rank: ``start <= layer < end`` of the model's *total*."""

    start: int
    end: int
    total: int

    @classmethod
    def of(cls, config: VllmConfig) -> Stage:
        """The layers of the rank with this configuration."""
        model = config.model_config
        start, end = model.get_layers_start_end_indices(config.parallel_config)
        return cls(int(start), int(end), int(model.get_total_num_hidden_layers()))


def boundaries(total: int, parts: int) -> tuple[int, ...]:
    """The layers at which *total* layers are cut into *parts*, both ends included.

    As vLLM divides them among the stages of a pipeline by default (``get_pp_indices``): the
    remainder goes to the parts before the last one.
    """
    sizes = [total // parts] * parts
    for index in range(total % parts):
        sizes[-2 - index] += 1
    return tuple(sum(sizes[:part]) for part in range(parts + 1))


def own_partition(config: VllmConfig, rank: Rank) -> dict[str, str]:
    """The layers of a stage, if they are not those that its number implies.

    ``VLLM_PP_LAYER_PARTITION`` may give two stages of one number equally many, but other layers.
    """
    stages = int(config.parallel_config.pipeline_parallel_size)
    if stages == 1:
        return {}
    stage = Stage.of(config)
    cuts = boundaries(stage.total, stages)
    number = rank.number // int(config.parallel_config.tensor_parallel_size)
    usual = (stage.start, stage.end) == cuts[number : number + 2]
    return {} if usual else {"layers": f"{stage.start} to {stage.end} of {stage.total}"}


def shards_of(config: VllmConfig, memory: Memory, rank: Rank, wanted: ShardSettings) -> list[Shard]:
    """The shards of a rank, in the order of layers and then of heads.

    Raises:
        ConfigError: it does not hold whole shards, or it is not known which it holds.
    """
    first, own, heads = _heads(config, memory, rank)
    if heads % wanted.heads:
        raise ConfigError(f"shards.heads: {heads} KV head(s) are not {wanted.heads} equal parts")
    width = heads // wanted.heads
    if first % width or own % width:
        raise ConfigError(
            f"shards.heads: a rank holds KV heads {first} to {first + own - 1} of {heads}, and"
            f" {wanted.heads} parts have {width} each: give a multiple of every"
            " tensor_parallel_size that shares this cache"
        )
    stage = Stage.of(config)
    cuts = boundaries(stage.total, wanted.layers) if wanted.layers <= stage.total else ()
    if stage.start not in cuts or stage.end not in cuts:
        raise ConfigError(
            f"shards.layers: a rank holds layers {stage.start} to {stage.end - 1} of"
            f" {stage.total}, which are not whole parts of {wanted.layers}: give a multiple of"
            " every pipeline_parallel_size that shares this cache"
        )
    numbers = {name: _number(name, stage) for name in memory.layers}
    shards = []
    for part in range(cuts.index(stage.start), cuts.index(stage.end)):
        here = range(cuts[part], cuts[part + 1])
        layers = tuple(name for name, number in numbers.items() if number in here)
        if not layers:
            raise ConfigError(f"shards.layers: none of layers {here[0]} to {here[-1]} has KV")
        for start in range(first, first + own, width):
            index = part * wanted.heads + start // width
            piece = ParallelSlice(index, wanted.layers * wanted.heads)
            shards.append(Shard(piece, layers, range(start - first, start - first + width)))
    return shards


def narrowed(
    shard: Shard, memory: Memory, caches: Mapping[str, torch.Tensor], *, apart: bool
) -> tuple[Memory, dict[str, torch.Tensor]]:
    """The part of a rank's memory that a shard is, and views on it.

    Args:
        shard: which part.
        memory: the rank's.
        caches: its tensors.
        apart: True if the tokens in a block are known to lie apart from each other.

    Raises:
        ConfigError: heads are to be separated, and their place is not known.
    """
    shapes: dict[str, LayerShape] = {}
    views: dict[str, torch.Tensor] = {}
    for name in shard.layers:
        shape, cache = memory.layers[name], caches[name]
        if len(shard.heads) < shape.heads:
            # Backends for CPUs pack the tokens of a head, and no two heads, into one another.
            known = apart or cache.device.type == "cpu"
            if not known or cache.dim() != _CUTTABLE or cache.shape[1] != shape.heads:
                raise ConfigError(
                    "shards.heads: this vLLM keeps blocks here in a layout of its own, so the"
                    " heads of a rank cannot be separated"
                )
            size = shape.block_bytes * len(shard.heads) // shape.heads
            shape = replace(shape, heads=len(shard.heads), block_bytes=size)
            cache = cache[:, shard.heads.start : shard.heads.stop]
        shapes[name], views[name] = shape, cache
    return replace(memory, layers=shapes), views


def _heads(config: VllmConfig, memory: Memory, rank: Rank) -> tuple[int, int, int]:
    """The first KV head of a rank, how many it has, and how many the model has."""
    shapes = memory.layers.values()
    if not any(shape.value_width for shape in shapes):
        return 0, 1, 1  # latent attention: every rank has all of it
    tensor = int(config.parallel_config.tensor_parallel_size)
    total = config.model_config.get_total_num_kv_heads()
    own = {shape.heads for shape in shapes}
    if len(own) == 1 and type(total) is int and own == {total * memory.replicas // tensor}:
        (count,) = own
        if count * tensor == total * memory.replicas:
            return rank.number % tensor // memory.replicas * count, count, total
    raise ConfigError(
        f"shards: {tensor} rank(s) of {sorted(own)} KV heads for a model of {total}: the"
        " heads that a rank holds are unknown"
    )


def _number(name: str, stage: Stage) -> int:
    """The number of a layer of the model."""
    numbers = [int(found) for found in _NUMBER.findall(name)]
    if len(numbers) != 1 or not stage.start <= numbers[0] < stage.end:
        raise ConfigError(
            f"shards: {name} is none of layers {stage.start} to {stage.end - 1}, so the"
            " part it belongs to is unknown (models that draft tokens are not divided)"
        )
    return numbers[0]
