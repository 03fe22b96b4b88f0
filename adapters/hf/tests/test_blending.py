"""Blending: what is computed is the model's own, and what is reused is used as it is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, Phi3Config, Phi3ForCausalLM, PreTrainedModel

from engines.hf.blended_prompts import (
    FAMILIES,
    PADDED,
    empty,
    full,
    laid_out,
    new,
    off,
    scaled,
    text,
    together,
)
from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.blending.blender import Blender
from hexkv.adapters.hf.blending.plan import BlendPlan, Run
from hexkv.adapters.hf.blending.progress import Progress
from hexkv.adapters.hf.blending.selectors import SELECTORS, first_layer
from hexkv.adapters.hf.shape import compute_planes
from hexkv.contracts.kit.cases import case
from hexkv.kernels.rotary import RotaryMap
from hexkv.ports import InvalidRequest, InvalidTokens, LayoutMismatch

EXACT = 1e-5
"""What logits may differ by that are computed in another shape, in float32."""

SEARCHED = 3 * EXACT
"""Of any shape: 2000 at random differ by 8.4e-6 at most, but one that was sought by 1.03e-5."""


@pytest.fixture(scope="module")
def blender():
    with Blender(new()) as made:
        yield made


PIECES = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 9),
    PIECES,
    st.integers(0, 4),
    st.integers(-1, 3),
    st.sampled_from(sorted(SELECTORS)),
    st.integers(1, 3),
)
def test_computing_everything_anew_gives_the_models_own_logits(
    blender, prefix, pieces, tail, check, selector, keep
):
    """In every shape of a prompt: with a prefix and without, holes anywhere, any subset known."""
    check = max(check, first_layer(SELECTORS[selector]()))
    tokens, runs, room = laid_out(blender, prefix, pieces, tail)
    plan = BlendPlan(check, 1.0, selector)
    keep = min(keep, len(tokens))
    made = blender.blend(tokens, room, prefix=prefix, reused=runs, plan=plan, keep=keep)
    assert off(made.logits, full(blender.model, tokens, keep)) <= SEARCHED
    counts = made.counts
    assert counts.prefix + counts.reused + counts.recomputed + counts.computed == len(tokens)
    with torch.no_grad():  # it goes on from there as the model does
        more = with_cache(blender.model, made.cache)
        ahead = blender.model(torch.tensor([[5]]), **more).logits[0]
    assert off(ahead, full(blender.model, [*tokens, 5])) <= SEARCHED


def test_segments_in_every_order_are_exact_when_computed_anew(blender):
    pieces = [text(size, 40 + size) for size in (3, 8, 5, 11)]
    known = [blender.compute(piece) for piece in pieces]
    for number, order in enumerate(permutations(range(4))):
        tokens, runs, room = text(2, 7), [], empty(blender, 40)
        for piece in order:
            if (number >> piece) % 3:  # another subset each time
                runs.append(blender.place(room, len(tokens), known[piece]))
            tokens += [*pieces[piece], 3]
        plan = BlendPlan(number % 5 - 1, 1.0, "first") if number % 5 < 4 else BlendPlan(1, 1.0)
        with case(order):
            made = blender.blend(tokens, room, reused=runs, plan=plan)
            assert off(made.logits, full(blender.model, tokens)) <= EXACT


def as_moved(blender: Blender) -> float:
    """How far off a prompt is whose reused KV is right, once it is rotated to its place.

    The model itself computes it elsewhere: all of the prompt further behind, which changes
    nothing but the rotation of keys.
    """
    tokens = text(40, 3)
    places = torch.arange(len(tokens))[None] + 31
    far = compute_planes(blender.model, tokens, DynamicCache(), position_ids=places)
    room = empty(blender, len(tokens))
    room.fill(blender.compute(tokens[:4]))
    runs = []
    for start, end in ((4, 13), (15, 30), (30, 37)):
        part = [[plane[:, :, start:end] for plane in planes] for planes in far]
        runs.append(blender.place(room, start, part, own=start + 31))
    plan = BlendPlan(0, 0.0, "first")
    made = blender.blend(tokens, room, prefix=4, reused=runs, plan=plan, keep=2)
    return off(made.logits, full(blender.model, tokens, 2))


def as_damaged(blender: Blender, selector: str = "value-deviation", check: int = 1) -> float:
    """How far off a prompt is some of whose reused KV is wrong, if as much is computed."""
    tokens = text(40, 4)
    room = empty(blender, len(tokens))
    exact = blender.compute(tokens)
    runs = [Run(5, 15, 5), Run(18, 34, 18)]
    for start, end in ((0, 5), *(run[:2] for run in runs)):
        room.fill([[plane[:, :, start:end] for plane in planes] for planes in exact], start)
    wrong = [6, 14, 18, 21, 33]
    for planes in room.planes:
        for plane in planes:
            plane[:, :, wrong] += 3.0
    plan = BlendPlan(check, len(wrong) / 26, selector)
    made = blender.blend(tokens, room, prefix=5, reused=runs, plan=plan)
    return off(made.logits, full(blender.model, tokens))


def test_right_kv_is_used_as_it_is_and_wrong_kv_is_found_and_computed(blender):
    assert as_moved(blender) <= 10 * EXACT  # a rotation rounds once more
    for selector in ("value-deviation", "key-deviation"):
        for check in range(1, 3):
            with case((selector, check)):
                assert as_damaged(blender, selector, check) <= EXACT
    assert as_damaged(blender, "first", 0) > 100 * EXACT


def test_selectors_choose_what_they_say_and_refuse_what_means_nothing(blender):
    tokens, runs, _ = laid_out(blender, 3, [(9, True), (4, False), (12, True)], 4)
    seen: dict[str, list[int]] = {}

    class Noting:
        needs_layer = needs_attention = True

        def __init__(self, name: str) -> None:
            self.name = name

        def scores(self, evidence):
            scores = SELECTORS[self.name]().scores(evidence)
            seen[self.name] = evidence.positions[scores.topk(4).indices].sort().values.tolist()
            seen["attention"] = evidence.attention
            return scores

    def choose(blender, name):
        _, _, room = laid_out(blender, 3, [(9, True), (4, False), (12, True)], 4)
        blender.blend(tokens, room, prefix=3, reused=runs, plan=BlendPlan(1, 0.2, Noting(name)))
        return seen[name]

    assert choose(blender, "first") == [3, 4, 16, 17]
    assert choose(blender, "random") == choose(blender, "random")
    chosen, attention = choose(blender, "question"), seen["attention"]
    with Blender(new("llama, eager")) as eager:  # which hands out its weights
        assert choose(eager, "question") == chosen
        assert torch.allclose(seen["attention"], attention, atol=1e-5)
    with torch.no_grad():
        weights = eager.model(torch.tensor([tokens]), output_attentions=True).attentions[1]
    asked = weights[0, :, 28:].sum((0, 1))[[*range(3, 12), *range(16, 28)]]
    assert torch.allclose(attention, asked, atol=1e-4)

    room = blender.room(50)
    for wrong in (
        {"plan": BlendPlan(4, 0.1)},
        {"plan": BlendPlan(-2, 0.1)},
        {"plan": BlendPlan(-1, 0.1, "question")},
        {"plan": BlendPlan(0, 0.1, "value-deviation")},
        {"plan": BlendPlan(1, 1.5)},
        {"plan": BlendPlan(1, 0.1, "luck")},
        {"reused": [Run(5, 9), Run(8, 12)]},
        {"reused": [Run(5, 90)]},
        {"reused": [Run(9, 5)]},
        {"prefix": 33},
        {"keep": 0},
    ):
        with case(wrong), pytest.raises(InvalidRequest):
            blender.blend(tokens, room, **wrong)
    with pytest.raises(InvalidRequest, match="too small"):
        blender.blend(tokens, blender.room(31))
    with pytest.raises(InvalidRequest, match="in layer 0 deviations are rounding alone"):
        BlendPlan(0, 0.1, "key-deviation").chosen_by()
    for wrong in ([], [[1, 2], [3, 4]], [-1]):
        with case(wrong), pytest.raises(InvalidTokens):
            blender.blend(torch.tensor(wrong), room)


SHAPES = st.tuples(st.integers(0, 9), PIECES, st.integers(1, 4))


def batches_are_as_one_by_one(blender, shapes, check, selector, keep, *, limit=EXACT):
    check = max(check, first_layer(SELECTORS[selector]()))
    laid, room, made = together(blender, shapes, BlendPlan(check, 1.0, selector), keep)
    width = max(len(tokens) for tokens, _, _ in laid)
    for (tokens, _, _), logits in zip(laid, made.logits, strict=True):
        assert off(logits, full(blender.model, tokens, keep)) <= limit
    # It goes on from there, for all prompts at once.
    before = torch.tensor([[width - len(tokens)] for tokens, _, _ in laid])
    with torch.no_grad():
        ahead = blender.model(
            torch.full_like(before, 5),
            attention_mask=(torch.arange(width + 1) >= before).long(),
            position_ids=width - before,
            **with_cache(blender.model, room.filled(width, width)),
        ).logits
    for (tokens, _, _), logits in zip(laid, ahead, strict=True):
        assert off(logits, full(blender.model, [*tokens, 5])) <= limit
    # And chooses for each as if it were alone.
    plan = BlendPlan(check, 0.3, selector)
    laid, _, made = together(blender, shapes, plan, keep)
    for number, ((tokens, runs, own), (prefix, *_)) in enumerate(zip(laid, shapes, strict=True)):
        alone = blender.blend(tokens, own, prefix=prefix, reused=runs, plan=plan, keep=keep)
        counts = made.counts[number]
        assert (counts.reused, counts.recomputed) == (alone.counts.reused, alone.counts.recomputed)
        assert off(made.logits[number], alone.logits) <= limit


@settings(max_examples=25, deadline=None)
@example([(0, [(1, False)], 3), (0, [(2, False), (1, True)], 1)], 0, "first", 1)
@example([(0, [(1, False)], 1), (1, [(2, True)], 1)], 0, "key-deviation", 1)
@given(
    st.lists(SHAPES, min_size=2, max_size=4),
    st.integers(-1, 3),
    st.sampled_from(sorted(SELECTORS)),
    st.integers(1, 2),
)
def test_prompts_of_a_batch_are_as_each_by_itself(blender, shapes, check, selector, keep):
    """Each has a length, a prefix, holes and chosen tokens of its own, or nothing that is known."""
    keep = min([keep, *(prefix + sum(n for n, _ in p) + t for prefix, p, t in shapes)])
    batches_are_as_one_by_one(blender, shapes, check, selector, keep, limit=SEARCHED)
    assert blender.takes_batches


BATCH = [(4, [(9, True), (3, False), (12, True)], 3), (0, [(5, False)], 2), (9, [(7, True)], 1)]


@pytest.mark.thorough
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_batches_of_every_family_are_as_each_prompt_by_itself(name, together):
    with Blender(new(name)) as blender:
        assert blender.takes_batches
        blender._batches = together
        for check, selector in ((1, "question"), (1, "value-deviation"), (-1, "first")):
            batches_are_as_one_by_one(blender, BATCH, check, selector, 1, limit=SEARCHED)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_rotated_by_its_own_frequencies(name):
    with Blender(new(name)) as blender:
        tokens, runs, room = laid_out(blender, 4, [(9, True), (3, False), (12, True)], 3)
        plan = BlendPlan(1, 1.0)
        made = blender.blend(tokens, room, prefix=4, reused=runs, plan=plan)
        assert off(made.logits, full(blender.model, tokens)) <= EXACT
        assert as_moved(blender) <= 30 * EXACT
        assert as_damaged(blender, "value-deviation", 1) <= EXACT
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(RotaryMap, "rotate", lambda *_: None)
            assert as_moved(blender) > 1000 * EXACT


@pytest.mark.thorough
def test_what_cannot_be_rotated_is_refused_by_name():
    def longrope() -> PreTrainedModel:
        factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        rope = {"rope_type": "longrope", "rope_theta": 10_000.0, **factors}
        return Phi3ForCausalLM(
            Phi3Config(**PADDED, rope_parameters=rope, original_max_position_embeddings=128)
        )

    def changed() -> PreTrainedModel:
        model = new()
        inner = model.model.rotary_emb.forward

        def squeezed(x, position_ids):
            return inner(x, position_ids * 0.5)

        model.model.rotary_emb.forward = squeezed
        return model

    def flash() -> PreTrainedModel:
        model = new()
        model.config._attn_implementation = "flash_attention_2"
        return model

    for reason, make in {
        "dynamic": lambda: scaled(rope_type="dynamic", factor=4.0),
        "longrope": longrope,
        "does not rotate layer 0 by its own frequencies": changed,
        "attn_implementation": flash,
    }.items():
        torch.manual_seed(1)
        with case(reason), pytest.raises(LayoutMismatch, match=reason):
            Blender(make().eval())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["llama", "gemma 3, two RoPEs", "glm, partial and interleaved"])
def test_bfloat16_is_as_near_as_its_rounding(name):
    with Blender(new(name).to(torch.bfloat16)) as blender:
        tokens, runs, room = laid_out(blender, 4, [(9, True), (3, False), (12, True)], 3)
        made = blender.blend(tokens, room, prefix=4, reused=runs, plan=BlendPlan(1, 1.0))
        wanted = full(blender.model, tokens)
        assert (made.logits - wanted).norm() <= 0.05 * wanted.norm()
        laid, _, batch = together(blender, BATCH, BlendPlan(1, 1.0))
        for (tokens, _, _), logits in zip(laid, batch.logits, strict=True):
            wanted = full(blender.model, tokens)
            assert (logits - wanted).norm() <= 0.05 * wanted.norm()


def wrongly_moved(change: Callable[[int], int]) -> Callable[[pytest.MonkeyPatch], None]:
    right = RotaryMap.rotate

    def patch(patched: pytest.MonkeyPatch) -> None:
        def rotate(self, layer, planes, runs):
            moved = [run._replace(position=run.start - change(run.offset)) for run in runs]
            right(self, layer, planes, moved)

        patched.setattr(RotaryMap, "rotate", rotate)

    return patch


def chosen_otherwise(patched: pytest.MonkeyPatch) -> None:
    """As if rows were counted from the beginning of the prompt, not of what is computed."""
    right = Progress._scores
    patched.setattr(Progress, "_scores", lambda self: right(self).roll(self.prefix))


def holes_as_zeros(patched: pytest.MonkeyPatch) -> None:
    right = Progress.choose

    def choose(self):
        holes = (self._own < 0).nonzero().ravel()
        right(self)
        if self.rows is not None:
            last = self.first_rows - 1
            kept = [r for r in self.rows.tolist() if r + self.prefix not in holes or r == last]
            self.rows = torch.tensor(kept)
            self.positions = self.rows + self.prefix

    def compute(self, layer, fresh, room):
        for plane in room:
            plane.nan_to_num_(0.0)
        inner(self, layer, fresh, room)

    inner = Progress.compute
    patched.setattr(Progress, "compute", compute)
    patched.setattr(Progress, "choose", choose)


def last_dropped(patched: pytest.MonkeyPatch) -> None:
    right = Progress.choose

    def choose(self):
        began = self.rows is None
        right(self)
        if began and self.rows is not None:
            self.rows, self.positions = self.rows[:-1], self.positions[:-1]

    patched.setattr(Progress, "choose", choose)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(wrongly_moved(lambda _: 0), id="not rotated"),
        pytest.param(wrongly_moved(lambda offset: -offset), id="rotated the other way"),
        pytest.param(wrongly_moved(lambda offset: offset + 1), id="rotated one too far"),
        pytest.param(chosen_otherwise, id="chosen in other coordinates"),
        pytest.param(holes_as_zeros, id="holes taken for zeros"),
        pytest.param(last_dropped, id="last token left out"),
    ],
)
def test_the_bars_catch_a_blender_that_is_wrong(blender, monkeypatch, fault):
    fault(monkeypatch)
    assert max(as_moved(blender), as_damaged(blender)) > 100 * EXACT
    monkeypatch.undo()
    assert max(as_moved(blender), as_damaged(blender)) <= 10 * EXACT
