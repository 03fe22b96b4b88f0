"""The namespace of a live model's KV: as long as its weights stay as they are."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

from transformers import PreTrainedModel

from hexkv.adapters.hf.cache import CacheShape
from hexkv.adapters.hf.identity import snapshot_of, weights_digest
from hexkv.adapters.hf.shape import probe
from hexkv.adapters.hf.snapshot import Snapshot
from hexkv.ports import LayoutMismatch, Namespace

log = logging.getLogger("hexkv.hf")


class Identity(NamedTuple):
    """The namespace of KV, and the shape of its cache."""

    namespace: Namespace
    shape: CacheShape


class LiveIdentity:
    """The identity of a model whose weights may change in memory. Safe from any thread.

    Other weights begin another namespace, with a digest of the weights in memory then, also where
    the first one was vouched for. Equal weights have an equal namespace, so those that come back
    find the KV that was stored.
    """

    def __init__(self, model: PreTrainedModel, namespace: Namespace) -> None:
        """Begin with *namespace*, if *model* still has the weights that it was made for.

        Raises:
            LayoutMismatch: the model's KV cannot be cached by prefix.
        """
        self._model = model
        self._lock = Lock()
        self.last = Identity(namespace, probe(model))
        """The identity at the last call of :meth:`now`."""

        self._snapshot = snapshot_of(model, namespace)

    def now(self) -> Identity:
        """The identity of the weights that are in memory now.

        Raises:
            LayoutMismatch: the model is in training mode, or can no longer be cached.
        """
        with self._lock:
            if self._model.training:
                name = type(self._model).__name__
                raise LayoutMismatch(
                    f"{name} is in training mode, where dropout changes KV: call eval()"
                )
            if self._snapshot is None or not self._snapshot.holds(self._model):
                self._begin_anew()
            return self.last

    def _begin_anew(self) -> None:
        began = time.perf_counter()
        shape = probe(self._model)
        snapshot = Snapshot(self._model)
        before = self.last.namespace
        after = replace(before, revision=weights_digest(self._model), layout=shape.layout)
        self.last = Identity(after, shape)
        self._snapshot = snapshot
        log.warning(
            "Weights of %s changed in memory. KV of %r is neither loaded nor stored from here on:"
            " that of the new weights is %r, found in %.1f s.",
            type(self._model).__name__,
            before.revision,
            after.revision,
            time.perf_counter() - began,
        )
