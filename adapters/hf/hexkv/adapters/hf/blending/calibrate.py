"""How a model may be blended: measured on prompts, beside full computation of them."""

from __future__ import annotations

import hashlib
import platform
import statistics
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from math import sqrt
from typing import NamedTuple

import torch
import transformers
from transformers import PreTrainedModel

from hexkv.adapters.hf.blending.blender import Blender
from hexkv.adapters.hf.blending.gate import divergences
from hexkv.adapters.hf.blending.plan import BlendPlan
from hexkv.adapters.hf.blending.record import BlendRecord, identity_of
from hexkv.adapters.hf.blending.selectors import first_layer, selector_of
from hexkv.ports import InvalidRequest, Namespace

PIECES = 4
"""Segments of a prompt of the sample; the first one is its exact prefix."""

SELECTORS = ("question", "value-deviation", "key-deviation", "first")
RATIOS = (0.05, 0.15, 0.25, 0.5)

_ERRORS = 2.0
"""Standard errors that are added to a mean before it is compared with the bound."""


class SamplePrompt(NamedTuple):
    """Segments, and the question after them."""

    segments: tuple[list[int], ...]
    question: list[int]

    @property
    def tokens(self) -> list[int]:
        """The whole prompt."""
        return [token for part in (*self.segments, self.question) for token in part]


@dataclass(slots=True)
class Trial:
    """The results of one plan on the prompts so far."""

    plan: BlendPlan
    means: list[float] = field(default_factory=list)
    """Divergence, in nats: the mean of each prompt."""

    single: list[float] = field(default_factory=list)
    """Divergence of each token of the questions, in nats."""

    agreed: int = 0
    shares: list[float] = field(default_factory=list)
    dropped: bool = False
    """True if the bound was out of reach before the last prompt."""

    @property
    def kl(self) -> float:
        """The mean so far, in nats."""
        return statistics.fmean(self.means)

    @property
    def share(self) -> float:
        """Tokens times layers that were computed, of those of the whole prompts."""
        return statistics.fmean(self.shares)

    @property
    def agreement(self) -> float:
        """Share of the questions' tokens after which the likeliest next one is the same."""
        return self.agreed / len(self.single)

    def holds(self, bound: float) -> bool:
        """True if its mean is below *bound* by two standard errors, over the prompts."""
        if self.dropped or len(self.means) < 2:
            return False
        return self.kl + _ERRORS * statistics.stdev(self.means) / sqrt(len(self.means)) <= bound


def sample_prompts(
    documents: Iterable[Sequence[int]], *, segment: int, question: int, prompts: int
) -> list[SamplePrompt]:
    """At most *prompts* neighbourhoods, evenly spread over *documents*, which follow each other.

    Pieces that stand side by side lean on each other more than documents that were found one by
    one, so measurements on them are rather too strict than too lenient.

    Raises:
        InvalidRequest: there are fewer tokens than two prompts take.
    """
    tokens = [token for document in documents for token in document]
    length = PIECES * segment + question
    count = min(prompts, len(tokens) // length)
    if count < 2:
        raise InvalidRequest(
            f"{len(tokens)} tokens are fewer than two prompts take: {2 * length}, of {PIECES}"
            f" segments of {segment} and a question of {question} each"
        )
    every = (len(tokens) - length) // (count - 1)
    made = []
    for start in range(0, every * count, every):
        ends = [start + piece * segment for piece in range(PIECES + 1)]
        parts = tuple(tokens[a:b] for a, b in pairwise(ends))
        made.append(SamplePrompt(parts, tokens[ends[-1] : start + length]))
    return made


def plans_for(layers: int) -> Iterator[BlendPlan]:
    """Every plan that may be tried on a model of *layers* layers."""
    checks = {0, 1, 2, layers // 4, layers // 3, layers // 2}
    for check in (-1, *sorted(check for check in checks if check < layers)):
        yield BlendPlan(check, 0.0, "first")
        for ratio in RATIOS:
            for selector in SELECTORS:
                if check >= first_layer(selector_of(selector)):
                    yield BlendPlan(check, ratio, selector)


def measure(
    model: PreTrainedModel,
    prompts: Sequence[SamplePrompt],
    *,
    bound: float,
    plans: Sequence[BlendPlan] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> list[Trial]:
    """Blend *prompts* by each plan, from the cheapest, until one holds *bound*.

    Plans that cost the same are tried together. A plan is dropped as soon as its mean can no
    longer be within the bound.

    Args:
        model: computes.
        prompts: at least two. The KV of one is in memory at a time.
        bound: in nats.
        plans: by default those of :func:`plans_for`.
        progress: called with the number of further plans that are done.

    Raises:
        LayoutMismatch: the model cannot be blended.
    """
    trials: list[Trial] = []
    with Blender(model) as blender:

        def cost(plan: BlendPlan) -> float:
            return round(plan.recomputed(blender.layers), 9)

        for _, equal in groupby(sorted(plans or plans_for(blender.layers), key=cost), key=cost):
            racing = [Trial(plan) for plan in equal]
            trials += racing
            for prompt in prompts:
                _compare(blender, prompt, [trial for trial in racing if not trial.dropped])
                for trial in racing:
                    # Not "more than": a mean that is no number is dropped, too.
                    trial.dropped = not sum(trial.means) <= bound * len(prompts)
                if all(trial.dropped for trial in racing):
                    break
            progress(len(racing))
            if cheapest(racing, bound):
                break
    return trials


def _compare(blender: Blender, prompt: SamplePrompt, trials: Sequence[Trial]) -> None:
    """Blend one prompt by the plan of each of *trials*, and write down how far off it is."""
    tokens, keep, prefix = prompt.tokens, len(prompt.question), len(prompt.segments[0])
    segments = [blender.compute(segment) for segment in prompt.segments]
    with torch.no_grad():
        ids = torch.tensor([tokens], device=blender.model.device)
        full = blender.model(input_ids=ids, logits_to_keep=keep).logits[0]
    for trial in trials:
        room = blender.room(len(tokens))
        room.fill(segments[0])
        starts = accumulate(map(len, prompt.segments))
        runs = [
            blender.place(room, start, planes)
            for start, planes in zip(starts, segments[1:], strict=False)
        ]
        made = blender.blend(tokens, room, prefix=prefix, reused=runs, plan=trial.plan, keep=keep)
        kl = divergences(full, made.logits)
        trial.single += kl.tolist()
        trial.means.append(float(kl.mean()))
        trial.agreed += int((full.argmax(-1) == made.logits.argmax(-1)).sum())
        trial.shares.append(made.counts.share)


def cheapest(trials: Iterable[Trial], bound: float) -> Trial | None:
    """The trial that holds *bound* and computed least; of equals the one with least divergence."""
    holding = [trial for trial in trials if trial.holds(bound)]
    return min(holding, key=lambda trial: (trial.share, trial.kl), default=None)


def record_of(
    trial: Trial, prompts: Sequence[SamplePrompt], namespace: Namespace, bound: float
) -> BlendRecord:
    """The record of *trial*, which holds *bound*."""
    digest = hashlib.sha256()
    for prompt in prompts:
        for part in (*prompt.segments, prompt.question):
            digest.update(len(part).to_bytes(8, "little") + array("Q", part).tobytes())
    return BlendRecord(
        model=namespace.model,
        revision=namespace.revision,
        identity=identity_of(namespace),
        selector=str(trial.plan.selector),
        check_layer=trial.plan.check_layer,
        ratio=trial.plan.ratio,
        kl=trial.kl,
        kl_quantile=statistics.quantiles(trial.single, n=10)[-1],
        bound=bound,
        agreement=trial.agreement,
        share=trial.share,
        prompts=len(prompts),
        tokens=len(trial.single),
        sample=digest.hexdigest(),
        versions={
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "transformers": str(transformers.__version__),
        },
    )
