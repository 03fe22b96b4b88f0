"""What blending does to a model's answers, by what of the reused KV is computed all the same."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import nan, sqrt

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.quality.segments import Segmented
from benchmarks.rig.measure import must
from hexkv.adapters.hf.blending.blender import Blender, Planes
from hexkv.adapters.hf.blending.plan import BlendPlan, Run
from hexkv.adapters.hf.blending.selectors import Evidence, Selector
from hexkv.adapters.hf.cache import RequestKV

RATIOS = (0.05, 0.15, 0.25, 0.5)
"""Of the reused tokens. Besides: none of them, and all."""

NONE, ALL, UNROTATED, LATER_KEYS = "none", "all", "none, keys not rotated", "LMCache's rule"
SELECTORS = ("value-deviation", "key-deviation", "question", "first", "random")


@dataclass(frozen=True, slots=True)
class Setting:
    """One way of choosing the tokens that are computed."""

    check_layer: int
    selector: str
    """One of the blender's, or of the constants of this module."""

    ratio: float


@dataclass(frozen=True, slots=True)
class Score:
    """What one setting made of one prompt."""

    divergence: float
    """Nats, on average over what follows the segments: how far what is expected is from that
    after full computation."""

    agreed: float
    right: float
    right_across: float
    """Of what hangs on another segment; not a number where nothing does."""

    full_across: float
    """The same after full computation."""

    share: float
    """Tokens times layers that were computed, of those behind the prefix."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one setting made of all prompts."""

    setting: Setting
    share: float
    kl: float
    kl_error: float
    """Standard error of the mean, over the prompts."""

    agreement: float
    right: float
    right_across: float | None
    full_across: float | None


@dataclass(frozen=True, slots=True)
class _Given:
    """Chooses by scores that were worked out before."""

    scored: Tensor
    """``[tokens]``: by position in the prompt."""

    needs_layer = False
    needs_attention = False

    def scores(self, evidence: Evidence) -> Tensor:
        return self.scored[evidence.positions]


def settings(check_layers: Sequence[int], ratios: Sequence[float] = RATIOS) -> Iterator[Setting]:
    """Every setting that is measured, the cheapest first within each check layer."""
    yield Setting(0, UNROTATED, 0.0)
    for check_layer in check_layers:
        yield Setting(check_layer, NONE, 0.0)
        for ratio in ratios:
            for selector in (*SELECTORS, LATER_KEYS):
                # In layer 0 deviations are rounding alone.
                if check_layer or not selector.endswith("deviation"):
                    yield Setting(check_layer, selector, ratio)
    yield Setting(0, ALL, 1.0)


def measure(
    model: LlamaForCausalLM, cases: Iterable[Segmented], wanted: Sequence[Setting]
) -> list[Outcome]:
    """What each of the *wanted* settings does to *model*."""
    scores: dict[Setting, list[Score]] = {setting: [] for setting in wanted}
    with Blender(model) as blender:
        for case in cases:
            prompt = _Prompt(model, blender, case)
            for setting, found in scores.items():
                found.append(prompt.score(setting))
    return [_outcome(setting, found) for setting, found in scores.items()]


class _Prompt:
    """One case: full computation of it, and the KV of its segments."""

    def __init__(self, model: LlamaForCausalLM, blender: Blender, case: Segmented) -> None:
        self._blender, self._case = blender, case
        self._tokens = case.tokens
        self._keep = len(case.after)
        self._starts = list(accumulate(map(len, case.segments), initial=0))
        self._segments = [blender.compute(segment) for segment in case.segments]
        self._full = blender.compute(self._tokens)
        with torch.no_grad():
            logits = model(input_ids=self._tokens[None], logits_to_keep=self._keep).logits[0]
        self._expected: Tensor = logits.double().log_softmax(-1)

    def score(self, setting: Setting) -> Score:
        room = self._blender.room(len(self._tokens))
        room.fill(self._segments[0])
        runs = [
            self._place(room, start, planes, rotated=setting.selector != UNROTATED)
            for start, planes in zip(self._starts[1:], self._segments[1:], strict=False)
        ]
        reused = [[plane.clone() for plane in planes] for planes in room.planes]
        prefix = self._starts[1]
        blended = self._blender.blend(
            self._tokens,
            room,
            prefix=prefix,
            reused=runs,
            plan=BlendPlan(setting.check_layer, setting.ratio, self._selector(setting, reused)),
            keep=self._keep,
        )
        given = blended.logits.double().log_softmax(-1)
        if setting.selector == ALL:
            must(bool(torch.allclose(given, self._expected, atol=1e-4)), "all is as nothing reused")
        likeliest, best = given.argmax(-1), self._expected.argmax(-1)
        wanted, across = self._case.wanted, self._case.across
        known = wanted >= 0
        hits, full = likeliest == wanted, best == wanted
        return Score(
            float((self._expected.exp() * (self._expected - given)).sum(-1).mean()),
            float((likeliest == best).double().mean()),
            float(hits[known].double().mean()),
            float(hits[across].double().mean()) if across.any() else nan,
            float(full[across].double().mean()) if across.any() else nan,
            sum(blended.counts.rows) / (len(blended.counts.rows) * (len(self._tokens) - prefix)),
        )

    def _place(self, room: RequestKV, start: int, planes: Planes, *, rotated: bool) -> Run:
        if rotated:
            return self._blender.place(room, start, planes)
        room.fill(planes, start)
        return Run(start, start + planes[0][0].shape[2])

    def _selector(self, setting: Setting, reused: Planes) -> str | Selector:
        """LMCache compares keys one layer later, before that layer attends to them."""
        if setting.selector != LATER_KEYS:
            return "first" if setting.selector in (NONE, ALL, UNROTATED) else setting.selector
        layer = setting.check_layer + 1
        fresh, old = self._full[layer][0], reused[layer][0]
        return _Given((fresh - old).float().square().sum((0, 1, 3)))


def _outcome(setting: Setting, scores: Sequence[Score]) -> Outcome:
    kl = [score.divergence for score in scores]
    across = [score for score in scores if score.right_across == score.right_across]
    spread = statistics.stdev(kl) if len(kl) > 1 else 0.0
    return Outcome(
        setting,
        share=statistics.fmean(score.share for score in scores),
        kl=max(0.0, statistics.fmean(kl)),
        kl_error=spread / sqrt(len(kl)),
        agreement=statistics.fmean(score.agreed for score in scores),
        right=statistics.fmean(score.right for score in scores),
        right_across=_mean([score.right_across for score in across]),
        full_across=_mean([score.full_across for score in across]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
