"""Sizing: the pool, disk and network for a model and its traffic, each step with its formula."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from hexkv.ports import DType, InvalidRequest, KVLayout, frame_bytes

ROOM = 1.25
"""The ratio of the pool to the memory tier's budget: the rest is for chunks in transfer."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The KV of a model: attention with a number of heads, or latent attention (MLA)."""

    dtype: DType
    layers: int
    """The number of layers with KV."""

    heads: int = 0
    """KV heads of each layer; 0 for latent attention."""

    key_width: int = 0
    value_width: int = 0
    latent_width: int = 0
    rope_width: int = 0

    def __post_init__(self) -> None:
        widths = (self.key_width, self.value_width) if self.heads else (self.latent_width,)
        if self.layers < 1 or min(self.heads, self.rope_width) < 0 or min(widths) < 1:
            raise InvalidRequest("a model has layers, and heads of some width or a latent vector")

    @property
    def row(self) -> int:
        """Elements of one token in one layer and head, or in one layer."""
        return (
            self.key_width + self.value_width if self.heads else self.latent_width + self.rope_width
        )

    @property
    def token_bytes(self) -> int:
        """Bytes of KV for each token of the whole model, each head once."""
        return self.layers * max(1, self.heads) * self.row * self.dtype.itemsize

    def of_rank(self, tensor: int, pipeline: int) -> ModelShape:
        """Return the share of the largest rank, of *tensor* times *pipeline* ranks.

        Raises:
            InvalidRequest: the model cannot be divided in this way.
        """
        if tensor < 1 or not 1 <= pipeline <= self.layers:
            raise InvalidRequest(
                f"{tensor} x {pipeline} ranks of a model with {self.layers} layers"
            )
        if self.heads and self.heads % tensor and tensor % self.heads:
            raise InvalidRequest(f"{self.heads} KV heads cannot be divided among {tensor} ranks")
        heads = max(1, self.heads // tensor) if self.heads else 0
        return ModelShape(
            self.dtype,
            ceil(self.layers / pipeline),
            heads,
            self.key_width,
            self.value_width,
            self.latent_width,
            self.rope_width,
        )

    def layout(self) -> KVLayout:
        """Return the same as the layout of a cache."""
        if self.heads:
            return KVLayout.attention(
                self.dtype,
                layers=self.layers,
                heads=self.heads,
                key_width=self.key_width,
                value_width=self.value_width,
            )
        if not self.rope_width:
            raise InvalidRequest("latent attention has a part with positions")
        return KVLayout.latent(
            self.dtype,
            layers=self.layers,
            latent_width=self.latent_width,
            rope_width=self.rope_width,
        )


@dataclass(frozen=True, slots=True)
class PlannedTraffic:
    """The requests to serve."""

    requests: float
    """Requests per second."""

    tokens: float
    """Tokens of a prompt, on average."""

    shared: float
    """The share of tokens that were requested before."""

    prefixes: int = 1
    """The number of different shared prefixes."""

    def __post_init__(self) -> None:
        if self.requests < 0 or self.tokens < 0 or self.prefixes < 0 or not 0 <= self.shared <= 1:
            raise InvalidRequest("traffic is not below zero, and its shared part not above all")


class Sized(NamedTuple):
    """One result."""

    name: str
    value: float
    unit: str
    """``bytes``, ``bytes/s`` or ``tokens/s``."""

    formula: str
    """Its derivation, in words and in numbers."""


def size_cache(
    shape: ModelShape,
    traffic: PlannedTraffic,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    chunk_tokens: int = 256,
    memory_seconds: float = 300.0,
    disk_seconds: float = 86_400.0,
    smaller: float = 1.0,
) -> list[Sized]:
    """Return the resources that a cache takes, step by step; each line uses those above.

    Bytes are of the whole model, each KV head once, unless the name has "rank".

    Args:
        shape: the shape of the model's KV.
        traffic: the requests to serve.
        tensor: ranks that share each layer (tensor parallelism).
        pipeline: groups of ranks that share the layers (pipeline parallelism).
        chunk_tokens: tokens of a chunk.
        memory_seconds: seconds for which memory is to keep new chunks.
        disk_seconds: seconds for which the disk is to keep them.
        smaller: the factor by which a serde shrinks chunks on the disk and on the network.

    Raises:
        InvalidRequest: the model cannot be divided in this way, or a number is below zero.
    """
    if chunk_tokens < 1 or min(memory_seconds, disk_seconds) < 0 or smaller < 1:
        raise InvalidRequest("times are not below zero, and a chunk has tokens and never grows")
    rank = shape.of_rank(tensor, pipeline)
    each, of_rank = shape.token_bytes, rank.token_bytes
    chunk = frame_bytes(each * chunk_tokens)
    stored = chunk / chunk_tokens
    asked = traffic.requests * traffic.tokens
    hit = asked * traffic.shared
    new = asked - hit
    common = traffic.prefixes * traffic.shared * traffic.tokens
    memory = stored * (new * memory_seconds + common)
    disk = stored * (new * disk_seconds + common) / smaller
    written, read = new * stored / smaller, hit * stored / smaller
    less = f" / {smaller:g}" if smaller > 1 else ""
    held = f"{common:,.0f} of shared beginnings"
    return [
        Sized("a token", each, "bytes", _token(shape)),
        Sized("a token on one rank", of_rank, "bytes", _token(rank) + _ranks(tensor, pipeline)),
        Sized(
            "a chunk", chunk, "bytes", f"{chunk_tokens} tokens x {each:,}, in pages, and a header"
        ),
        Sized("tokens hit", hit, "tokens/s", f"requests x tokens x shared = {_asked(traffic)}"),
        Sized(
            "new tokens", new, "tokens/s", f"requests x tokens - hit = {asked:,.1f} - {hit:,.1f}"
        ),
        Sized("memory tier", memory, "bytes", f"bytes x (new x {memory_seconds:g} s + {held})"),
        Sized("pool", memory * ROOM, "bytes", f"memory tier x {ROOM}: transfers included"),
        Sized(
            "pool of one rank",
            memory * ROOM * of_rank / each,
            "bytes",
            "pool x a token on one rank / a token, where each rank has one",
        ),
        Sized("disk tier", disk, "bytes", f"bytes x (new x {disk_seconds:g} s + {held}){less}"),
        Sized("writing to disk", written, "bytes/s", f"new x bytes{less}"),
        Sized("reading from disk", read, "bytes/s", f"hit x bytes{less}, if memory has none of it"),
        Sized("network", written + read, "bytes/s", "both, where that tier is another machine's"),
    ]


def _token(shape: ModelShape) -> str:
    size = shape.dtype.itemsize
    if shape.heads:
        widths = f"({shape.key_width} + {shape.value_width})"
        words = "layers x KV heads x (key + value width) x bytes"
        return f"{words} = {shape.layers} x {shape.heads} x {widths} x {size}"
    widths = f"({shape.latent_width} + {shape.rope_width})"
    return f"layers x (latent + rope width) x bytes = {shape.layers} x {widths} x {size}"


def _ranks(tensor: int, pipeline: int) -> str:
    return f", of {tensor} ranks for each layer and {pipeline} for the layers"


def _asked(traffic: PlannedTraffic) -> str:
    return f"{traffic.requests:g} x {traffic.tokens:,.0f} x {traffic.shared:g}"
