"""Decides if a model may be blended: only as measured, and only as long as it stays so.

Most requests of a broken blending may look right, so a mean and its deviation say little about
ten of them. Instead three shares are bet on, each against the most that the record allows: the
divergence against its bound, the changed answers, and the tokens beyond a quantile of the sample.
A bet on a ratio *x* of the found value to the allowed one multiplies its stake by
``1 + share * (x - 1)``. As long as *x* is 1 or less on average, no choice of stakes makes a gain
of 100 more likely than 1 in 100, however heavy the tail and however long it goes on (Ville's
inequality; Waudby-Smith and Ramdas, arXiv 2010.09686). So blending that is within its record stays
on in 99 of 100 lives of a process.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Lock

import torch

from hexkv.adapters.hf.blending.plan import BlendPlan
from hexkv.adapters.hf.blending.record import BlendRecord
from hexkv.blending.ports import BlendOutcome
from hexkv.plugins.configuration.config import Loaded
from hexkv.ports import InvalidRequest, Namespace

log = logging.getLogger("hexkv.hf")

CHECKS = 10
"""Blended requests at the start that are all compared."""

GAIN = 100.0
"""The gain that proves it: chance reaches it in one life of a hundred, at the most."""

TRUSTED = 0.1
"""The gain above which all requests are compared, and answered by full computation."""

KEPT = 64
"""Tokens of a request whose expectations are compared, at the most: the last ones."""

_STAKES = (0.7, 0.15, 0.15)
"""Of the divergence, the changed answers, and the tokens beyond the quantile."""

_SHARES = (0.5, 0.9)
"""Of a stake that is risked at once; each gets half of it."""

_AT_FIRST = 0.95
"""Staked at the first comparison. The rest is staked later, ever less of it: what breaks after a
thousand good comparisons must not have to win back a thousand losses."""

_LOOSER = 2.0
"""How many times the sample's shares of changed answers and of tokens beyond its quantile are
allowed: of a few dozen prompts these are rough."""

_BEYOND = 0.1
"""The share of a sample's tokens beyond the record's quantile."""

_UNSEEN = 3.0
"""Changed answers that a sample without any may have missed, with 95 %."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Blended expectations of one request, beside those of full computation."""

    kl: float
    """Mean divergence of the compared tokens, in nats."""

    changed: float
    """Share of them after which the likeliest token is another one."""

    beyond: float
    """Share of them whose divergence is more than :func:`tail_of` the record."""

    @classmethod
    def of(
        cls, full: torch.Tensor, blended: torch.Tensor, record: BlendRecord | None
    ) -> Comparison:
        """Compare logits ``[tokens, vocabulary]`` with the *full* ones."""
        kl = divergences(full, blended)
        changed = (full.argmax(-1) != blended.argmax(-1)).double().mean()
        limit = 0.0 if record is None else tail_of(record)
        return cls(float(kl.mean()), float(changed), float((kl > limit).double().mean()))


def tail_of(record: BlendRecord) -> float:
    """The divergence beyond which a token is in the tail, in nats.

    It is the record's quantile, as much larger as the bound is than the mean of the sample.
    """
    return record.kl_quantile * (record.bound / record.kl if record.kl else 1.0)


def divergences(full: torch.Tensor, blended: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence of *blended* from *full*, in nats: ``[tokens]``.

    Args:
        full: logits ``[tokens, vocabulary]``.
        blended: logits of the same shape.
    """
    wanted = full.double().log_softmax(-1)
    given = blended.double().log_softmax(-1)
    # A token that is impossible adds nothing; some models mask those without a meaning by -inf.
    each = (wanted.exp() * (wanted - given)).masked_fill(wanted == -torch.inf, 0.0)
    return each.sum(-1).clamp_min(0)


class Evidence:
    """The comparisons of a process so far. Not safe from several threads."""

    def __init__(self, record: BlendRecord) -> None:
        self._bound = record.bound
        self.allowed_changed = _LOOSER * (1 - record.agreement) + _UNSEEN / record.tokens
        """The share of changed answers that the record allows."""

        self._allowed_beyond = _LOOSER * _BEYOND + _UNSEEN / record.tokens
        self._gains = [[0.0] * len(_SHARES) for _ in _STAKES]
        self._kl = self._changed = 0.0
        self._unstaked = 1.0
        self.gain = 1.0
        """What the bets are worth now, with the part that is staked later; 1 at the start."""

        self.comparisons = 0

    @property
    def kl(self) -> float:
        """The mean divergence so far, in nats."""
        return self._kl / max(1, self.comparisons)

    @property
    def changed(self) -> float:
        """The share of changed answers so far."""
        return self._changed / max(1, self.comparisons)

    def add(self, found: Comparison) -> bool:
        """Take in one more; ``True`` if blending is now proven to be worse than allowed."""
        self.comparisons += 1
        self._kl += found.kl
        self._changed += found.changed
        number = self.comparisons
        staked = _AT_FIRST if number == 1 else (1 - _AT_FIRST) / (number * (number - 1))
        self._unstaked -= staked
        ratios = (
            found.kl / self._bound,
            found.changed / self.allowed_changed,
            found.beyond / self._allowed_beyond,
        )
        total = 0.0
        for gains, ratio, stake in zip(self._gains, ratios, _STAKES, strict=True):
            for index, share in enumerate(_SHARES):
                gains[index] = (gains[index] + staked) * (1 + share * (ratio - 1))
            total += stake * sum(gains) / len(_SHARES)
        self.gain = total + self._unstaked
        # Not "more than": a divergence that is no number proves it, too.
        return not total < GAIN


class BlendGate:
    """Decides for each request if it is blended. Safe from any thread.

    Without a record of the model nothing is blended. Some requests are computed in full as well,
    and answered so: the first :data:`CHECKS`, and more until the comparisons speak ten to one for
    the record (:data:`TRUSTED`); then of the n-th ones ``CHECKS / n``, and at last one in *every*;
    again all of them while later comparisons speak against it. As soon as they prove that blending
    is beyond what the record allows, it is off until the process starts anew.
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
            trusted = self._evidence is None or self._evidence.gain <= TRUSTED
            share = max(CHECKS / self._requests, 1 / self._every) if trusted else 1.0
            return self._random.random() < min(1.0, share)

    def compared(self, full: torch.Tensor, blended: torch.Tensor) -> float:
        """Take in the logits of one request, ``[tokens, vocabulary]``, computed and blended.

        Returns:
            their divergence, in nats: the mean over the tokens.
        """
        found = Comparison.of(full, blended, self.record)
        self.take(found)
        return found.kl

    def take(self, found: Comparison) -> None:
        """Take in the outcome of one comparison."""
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
