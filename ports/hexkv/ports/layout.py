"""The layout of KV: its element type, the planes of one token, and the layers of a chunk.

The bytes of a chunk are always layer-major, ``[layer][plane][token][head * width]``, so
one layer of a chunk is one contiguous range, for every engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, starmap
from typing import Any

from hexkv.ports.errors import InvalidRequest
from hexkv.ports.runtime._kinds import check_kinds, check_parts
from hexkv.ports.runtime.dtype import DType


@dataclass(frozen=True, slots=True)
class Plane:
    """One tensor per layer and token: ``heads`` rows of ``width`` elements.

    Ordinary attention has the planes ``k`` and ``v``; multi-head latent attention (MLA)
    has ``latent`` and ``rope``, of different widths and one head each.
    """

    name: str
    heads: int
    width: int

    def __post_init__(self) -> None:
        check_kinds("Plane", str, name=self.name)
        check_kinds("Plane", int, heads=self.heads, width=self.width)
        if self.heads < 1 or self.width < 1:
            raise InvalidRequest(f"plane {self.name!r} must have at least one head and one element")


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Consecutive layers that share their planes."""

    layers: int
    planes: tuple[Plane, ...]

    def __post_init__(self) -> None:
        check_kinds("LayerGroup", int, layers=self.layers)
        check_parts("LayerGroup", "planes", self.planes, Plane)
        if self.layers < 1 or not self.planes:
            raise InvalidRequest("a layer group has at least one layer and one plane")


@dataclass(frozen=True)
class KVLayout:
    """Dtype and planes of every layer of a model, or of one rank's slice of it."""

    dtype: DType
    groups: tuple[LayerGroup, ...]

    def __post_init__(self) -> None:
        check_kinds("KVLayout", DType, dtype=self.dtype)
        check_parts("KVLayout", "groups", self.groups, LayerGroup)
        if not self.groups:
            raise InvalidRequest("a layout has at least one layer")

    def __repr__(self) -> str:
        parts = (
            f"{group.layers} x [{', '.join(f'{p.name} {p.heads}x{p.width}' for p in group.planes)}]"
            for group in self.groups
        )
        return f"<KVLayout {self.dtype}: {' + '.join(parts)}>"

    @classmethod
    def attention(
        cls,
        dtype: object,
        *,
        layers: int,
        heads: int,
        key_width: int,
        value_width: int | None = None,
    ) -> KVLayout:
        """Return a layout of multi-head or grouped-query attention (``heads`` counts KV heads).

        *dtype* is all that :meth:`DType.of` takes. Raises InvalidRequest if it is none.
        """
        value_width = key_width if value_width is None else value_width
        planes = (Plane("k", heads, key_width), Plane("v", heads, value_width))
        return cls(DType.of(dtype), (LayerGroup(layers, planes),))

    @classmethod
    def latent(cls, dtype: object, *, layers: int, latent_width: int, rope_width: int) -> KVLayout:
        """Return a layout of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""
        planes = (Plane("latent", 1, latent_width), Plane("rope", 1, rope_width))
        return cls(DType.of(dtype), (LayerGroup(layers, planes),))

    @cached_property
    def layers(self) -> int:
        """The number of layers."""
        return sum(group.layers for group in self.groups)

    @cached_property
    def planes(self) -> tuple[tuple[Plane, ...], ...]:
        """The planes of each layer, in layer order."""
        return tuple(group.planes for group in self.groups for _ in range(group.layers))

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        """Bytes per token before each layer, and before the end."""
        elements = (sum(plane.heads * plane.width for plane in planes) for planes in self.planes)
        return tuple(accumulate((n * self.dtype.itemsize for n in elements), initial=0))

    @cached_property
    def token_bytes(self) -> int:
        """Bytes of KV per token, over all layers."""
        return self._starts[-1]

    def chunk_bytes(self, tokens: int) -> int:
        """Return the bytes of a chunk of *tokens* tokens."""
        return tokens * self._starts[-1]

    def layer_span(self, layer: int, tokens: int) -> tuple[int, int]:
        """Return ``(start, end)`` of one layer in the bytes of a chunk of *tokens* tokens."""
        return self._starts[layer] * tokens, self._starts[layer + 1] * tokens

    @classmethod
    def parse(cls, described: Any) -> KVLayout:
        """Return the layout from the value of :meth:`describe`, also after a trip through JSON.

        Raises:
            ValueError: *described* is no such value.
        """
        try:
            groups = [(layers, tuple(starmap(Plane, of))) for layers, of in described["groups"]]
            return cls(DType(described["dtype"]), tuple(starmap(LayerGroup, groups)))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no description of a layout: {error}") from error

    def describe(self) -> dict[str, object]:
        """Return the layout as JSON values. They are equal for equal layers, in any groups."""
        runs = ((planes, len(list(same))) for planes, same in groupby(self.planes))
        groups = [[layers, [[p.name, p.heads, p.width] for p in planes]] for planes, layers in runs]
        return {"dtype": self.dtype.value, "groups": groups}
