"""Decides if a model may be blended: only as measured, and only as long as it stays so."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random
from threading import Lock

import torch

from hexkv.adapters.hf.blending.plan import BlendPlan
from hexkv.adapters.hf.blending.record import BlendRecord
from hexkv.adapters.hf.blending.tails import Comparison, Evidence
from hexkv.blending.ports import BlendOutcome
from hexkv.plugins.configuration.config import Loaded
from hexkv.ports import InvalidRequest, Namespace

log = logging.getLogger("hexkv.hf")

CHECKS = 10
"""Blended requests at the start that are all compared."""


class BlendGate:
    """Decides for each request if it is blended. Safe from any thread.

    Without a record of the model nothing is blended. Some requests are computed in full as well,
    and answered so: the first :data:`CHECKS`, then of the n-th ones ``CHECKS / n``, and at last one
    in *every*. As soon as these comparisons prove that blending is beyond what the record allows,
    it is off until the process starts anew.
    """

    def __init__(
        self,
        record: BlendRecord | None,
        *,
        every: int = 1_000,
        random: Random | None = None,
        lacking: str = "it has no record",
    ) -> None:
        """Allow blending as *record* measured it; ``None``: allow none, and log that.

        Args:
            record: of the model.
            every: one request in this number is computed in full as well, at the least.
            random: chooses them.
            lacking: why there is no record, for the log.

        Raises:
            InvalidRequest: *every* is less than one.
        """
        if every < 1:
            raise InvalidRequest(f"every must be at least 1, not {every}")
        if record is None:
            log.warning(
                "The model is not blended, all prompts are computed in full: %s."
                " Run `hexkv blend calibrate` to make a record.",
                lacking,
            )
        self.record = record
        self._every = every
        self._random = Random() if random is None else random  # noqa: S311 - a sample, no secret
        self._lock = Lock()
        self._evidence = None if record is None else Evidence(record)
        self._requests = 0
        self._off = False

    @classmethod
    def of_file(
        cls,
        path: Path | None,
        namespace: Namespace,
        *,
        every: int = 1_000,
        random: Random | None = None,
    ) -> BlendGate:
        """The gate of the model of *namespace*, by the record in a file, if there is one.

        Raises:
            InvalidRequest: the file holds something else, or is of another model.
        """
        record = None if path is None else BlendRecord.read(path)
        lacking = f"{namespace.model} has no record" + ("" if path is None else f" at {path}")
        if record is not None and not record.fits(namespace):
            raise InvalidRequest(
                f"{path}: is the record of {record.model!r}, {record.revision!r}; the cache is of"
                f" {namespace.model!r}, {namespace.revision!r}, with another KV layout, adapter or"
                " weights: calibrate this model"
            )
        return cls(record, every=every, random=random, lacking=lacking)

    @classmethod
    def of_config(cls, loaded: Loaded, namespace: Namespace) -> BlendGate:
        """The gate as the section ``segments`` has it: its record, and how often it compares.

        Args:
            loaded: of :func:`hexkv.plugins.configuration.config.load`.
            namespace: of the engine.

        Raises:
            InvalidRequest: as for :meth:`of_file`.
        """
        segments = loaded.settings.segments
        path = Path(segments.record) if segments.record else None
        return cls.of_file(path, namespace, every=segments.check_every)

    @property
    def closed(self) -> BlendOutcome | None:
        """Why nothing is blended; ``None`` if requests are."""
        if self.record is None:
            return BlendOutcome.NO_RECORD
        return BlendOutcome.SWITCHED_OFF if self._off else None

    @property
    def plan(self) -> BlendPlan | None:
        """How requests are blended; ``None`` if they are not."""
        return None if self.record is None or self._off else self.record.plan

    def due(self) -> bool:
        """True if this request is to be computed in full as well."""
        with self._lock:
            self._requests += 1
            share = max(CHECKS / self._requests, 1 / self._every)
            return self._random.random() < min(1.0, share)

    def compared(self, full: torch.Tensor, blended: torch.Tensor) -> float:
        """Take in the logits of one request, ``[tokens, vocabulary]``, computed and blended.

        Returns:
            their divergence, in nats: the mean over the tokens.
        """
        found = Comparison.of(full, blended, self.record)
        with self._lock:
            broken = self._evidence is not None and self._evidence.add(found)
            first, self._off = broken and not self._off, self._off or broken
        if first and self.record is not None and self._evidence is not None:
            log.error(
                "Blending of %s is switched off: in %d comparisons it was %.2g nats from full"
                " computation and changed %.2g of the answers; its record allows %.2g nats and %.2g"
                " of the answers. Calibrate the model again.",
                self.record.model,
                self._evidence.comparisons,
                self._evidence.kl,
                self._evidence.changed,
                self.record.bound,
                self._evidence.allowed_changed,
            )
        return found.kl
