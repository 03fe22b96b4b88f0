"""Segments that are loaded and rotated by a thread, layer by layer, ahead of the model."""

from __future__ import annotations

import time
from threading import Condition, Thread
from typing import Self

from hexkv.adapters.hf.blending.blender import Blender
from hexkv.adapters.hf.cache import RequestKV
from hexkv.blending.ports import LayeredSegments, PromptParts


class Lost(Exception):
    """A segment turned out to be damaged after it was counted on."""


class Loading:
    """KV of one prompt that is loaded and rotated by a thread of its own, ahead of the model.

    A context manager: the thread ends with it. Each of its steps ends by the engine's deadline.
    """

    def __init__(self, blender: Blender, room: RequestKV, layers: LayeredSegments) -> None:
        """Load the first layer, which shows most of the missing KV; begin with the others.

        Raises:
            InvalidRequest: the engine refuses.
        """
        self._blender = blender
        self._room = room
        self._layers = layers
        self._turn = Condition()
        self._loaded = -1
        self._over = False
        self._error: BaseException | None = None
        self.rotate_seconds = 0.0
        self.wait_seconds = 0.0
        """How long the model waited: for the first layer, and for those that came too late."""

        began = time.perf_counter()
        next(layers)
        self.parts: PromptParts = layers.parts
        self.runs = self.parts.segments
        self._rotate(0)
        self.wait_seconds += time.perf_counter() - began
        self._thread = Thread(target=self._load, name="hexkv-blend", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._turn:
            self._over = True
        self._thread.join()

    def wait(self, layer: int) -> None:
        """Return once the KV of *layer* is in the room, rotated to its place.

        Raises:
            Lost: some of it did not come.
        """
        began = time.perf_counter()
        with self._turn:
            self._turn.wait_for(lambda: self._loaded >= layer or self._error is not None)
            self.wait_seconds += time.perf_counter() - began
            if self._loaded < layer and self._error is not None:
                raise self._error

    def _load(self) -> None:
        """Load layer after layer. Their KV has a place already, so nothing bounds how far ahead."""
        try:
            while self._loaded + 1 < self._blender.layers and not self._over:
                self._advance()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            with self._turn:
                self._error = error
                self._turn.notify_all()

    def _advance(self) -> None:
        """Load the next layer.

        Raises:
            Lost: less of it came than of those before.
        """
        layer = next(self._layers)
        if self._layers.parts != self.parts:
            raise Lost(f"KV of a segment was lost at layer {layer}")
        self._rotate(layer)

    def _rotate(self, layer: int) -> None:
        began = time.perf_counter()
        self._blender.rotation.rotate(layer, self._room.planes[layer], self.runs)
        self.rotate_seconds += time.perf_counter() - began
        with self._turn:
            self._loaded = layer
            self._turn.notify_all()
