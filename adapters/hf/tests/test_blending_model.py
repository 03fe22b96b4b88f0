"""Blending over an engine: segments from its tiers, and no trace of what is approximate."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest
import torch

from engines.hf.blended_prompts import (
    PROMPT,
    SEGMENTS,
    SEPARATOR,
    configured,
    full,
    new,
    off,
    record,
    text,
)
from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.blending.gate import BlendGate
from hexkv.adapters.hf.blending.model import BlendingModel
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.blending.ports import BlendOutcome
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.faults import SlowStore
from hexkv.plugins.composition.compose import build
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.discovery.registry import Origin
from hexkv.ports import InvalidRequest

SIZES = sum(map(len, SEGMENTS))
HEAD = text(17, 90)


@pytest.fixture(scope="module")
def model():
    return new()


class Unlucky(Random):
    """Chooses no request to be compared."""

    def random(self):
        return 1.0


@contextmanager
def opened(model, folder, *, memory=True, **changes):
    namespace = namespace_of_model(model)
    gate = BlendGate(record(namespace, **changes), random=Unlucky())
    with (
        build(configured(folder, memory=memory), namespace) as engine,
        BlendingModel(model, engine, gate) as blending,
    ):
        yield engine, blending
    assert not engine.health().leases


def test_a_blended_request_leaves_no_trace(model, tmp_path):
    """What is exact stays exact bit for bit: at once, after a restart, and in other engines."""
    prompts = (PROMPT, [*HEAD, SEPARATOR, *PROMPT])
    with opened(model, tmp_path / "clean") as (engine, _):
        exact = CachedModel(model, engine)
        wanted = [exact.prefill(prompt).logits for prompt in prompts]
    with opened(model, tmp_path / "kv") as (engine, blending):
        assert blending.precompute(SEGMENTS) == SIZES == blending.precompute(SEGMENTS)
        new_tokens, made = blending.generate(PROMPT, 3)
        assert len(new_tokens) == 3
        assert made.report.outcome is BlendOutcome.BLENDED
        assert made.report.reused + made.report.recomputed == SIZES
        assert 0 < made.share < 1
        assert off(made.logits, wanted[0]) > 0.01
        assert engine.lookup(PROMPT).hit_tokens == 0
        for _ in range(2):
            made = blending.prefill(prompts[1])
        # What stands before the first segment is exact, and was stored as far as chunks reach.
        assert engine.lookup(prompts[1]).hit_tokens == 16 == made.report.prefix
    with opened(model, tmp_path / "kv") as (engine, blending):
        assert engine.lookup(PROMPT).hit_tokens == 0
        assert blending.prefill(PROMPT).report.outcome is BlendOutcome.BLENDED
        exact = CachedModel(model, engine)
        assert torch.equal(exact.prefill(PROMPT).logits, wanted[0])
        again = exact.prefill(prompts[1])
        assert again.hit_tokens == 16
        assert off(again.logits, wanted[1]) <= 1e-5
        # A prefix that is there in full is used, and no segment behind it is.
        whole = blending.prefill(PROMPT)
        assert whole.report.prefix >= len(PROMPT) - 8
        assert off(whole.logits, wanted[0]) <= 1e-5


def test_with_everything_computed_anew_the_engine_changes_nothing(model, tmp_path):
    with opened(model, tmp_path, ratio=0.995) as (engine, blending):
        blending.precompute(SEGMENTS[:2])
        CachedModel(model, engine).prefill(HEAD)
        for tokens in (PROMPT, [*HEAD[:16], SEPARATOR, *PROMPT]):
            made = blending.prefill(tokens)
            assert off(made.logits, full(model, tokens)[-1]) <= 1e-5
            assert made.report.recomputed == sum(map(len, SEGMENTS[:2]))
        assert made.report.prefix == 16
        # The first segment of a prompt that is computed in full is known from then on.
        first = blending.prefill([*SEGMENTS[2], SEPARATOR, 5])
        assert first.report.outcome is BlendOutcome.FULL
        again = blending.prefill([9, SEPARATOR, *SEGMENTS[2], SEPARATOR, 5])
        assert (again.report.recomputed, again.report.reused) == (len(SEGMENTS[2]), 0)
        with pytest.raises(InvalidRequest, match="at least 1"):
            blending.generate(PROMPT, 0)


@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_each_prompt_of_a_batch_is_blended_or_computed_as_if_it_were_alone(
    model, tmp_path, together
):
    """Rows with a prefix, with none, with nothing that is known, and all of one known prefix."""
    known = [*HEAD, SEPARATOR, 9, SEPARATOR]
    rows = (PROMPT, [*known, *PROMPT], text(23, 5), [*known, 4], [7, SEPARATOR, *PROMPT[-20:]])
    for ratio in (0.995, 0.15):
        folder = tmp_path / str(ratio)
        with opened(model, folder, ratio=ratio) as (engine, blending):
            blending.blender._batches = together
            blending.precompute(SEGMENTS)
            CachedModel(model, engine).prefill(known)
            alone = [blending.generate(row, 4) for row in rows]
            tokens, batch = blending.generate_batch(rows, 4)
            assert tokens == [new for new, _ in alone]
            assert batch.attention_mask.sum(1).tolist() == [len(row) for row in rows]
            for index, (row, (_, one)) in enumerate(zip(rows, alone, strict=True)):
                report, wanted = batch.reports[index], one.report
                assert report.outcome is wanted.outcome
                assert (report.reused, report.recomputed) == (wanted.reused, wanted.recomputed)
                assert off(batch.logits[index], one.logits) <= 1e-5
                if ratio == 0.995:
                    assert off(batch.logits[index], full(model, row)[-1]) <= 1e-5
            outcomes = [report.outcome for report in batch.reports]
            assert outcomes.count(BlendOutcome.BLENDED) == 3
            assert engine.lookup(PROMPT).hit_tokens == 0
            with pytest.raises(InvalidRequest, match="at least"):
                blending.prefill_batch([])


@pytest.mark.thorough
def test_a_batch_is_compared_and_loses_segments_as_single_prompts_do(model, tmp_path):
    rows = (PROMPT, PROMPT[-30:], [8, SEPARATOR, *PROMPT])
    wanted = [full(model, row)[-1] for row in rows]
    with opened(model, tmp_path) as (engine, blending):
        blending.precompute(SEGMENTS)
        blending._segments = Losing(blending._segments, 1, 1)
        batch = blending.prefill_batch(rows)
        assert {report.outcome for report in batch.reports} == {BlendOutcome.BLENDED}
        blending._segments = blending._segments.inner
        blending._gate = BlendGate(record(namespace_of_model(model)), every=1)
        batch = blending.prefill_batch(rows)
        assert {report.outcome for report in batch.reports} == {BlendOutcome.CHECKED}
        assert all(off(*pair) <= 1e-5 for pair in zip(batch.logits, wanted, strict=True))
        engine.clear(PROMPT)
        # What transformers generates from the batch is what it generates from each prompt.
        blending._gate = BlendGate(None)
        _, batch = blending.generate_batch(rows, 1)
        width = batch.attention_mask.shape[1]
        padded = torch.tensor([[0] * (width - len(row)) + [*row] for row in rows])
        batch.cache.crop(-1)
        ahead = model.generate(
            padded,
            attention_mask=batch.attention_mask,
            **with_cache(model, batch.cache),
            max_new_tokens=3,
            do_sample=False,
        )
        for row, made in zip(rows, ahead, strict=True):
            alone = model.generate(torch.tensor([row]), max_new_tokens=3, do_sample=False)
            assert made[width:].tolist() == alone[0, len(row) :].tolist()


@contextmanager
def over_a_link(model, folder, clock, **settings):
    """Blending over files, each of whose reads takes a tenth of a virtual second."""

    def slow(found, context):
        spec = registry.find("store", "disk")
        return SlowStore(spec.open(found, context), 0.1, spend=clock.advance)

    registry = discover()
    disk = registry.find("store", "disk")
    registry.offer(Origin("a test", ""), [replace(disk, name="link", open=slow, isolate=None)])
    given = configured(folder, memory=False)
    tiers = tuple(tier.model_copy(update={"store": "link"}) for tier in given.tiers)
    made = given.model_copy(update={"tiers": tiers, **settings})
    namespace = namespace_of_model(model)
    gate = BlendGate(record(namespace, check_layer=2, ratio=0.5), random=Unlucky())
    with (
        build(made, namespace, registry=registry, clock=clock) as engine,
        BlendingModel(model, engine, gate) as blending,
    ):
        yield engine, blending


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("computes", "outcome", "prefix"),
    [
        (0.04, BlendOutcome.BLENDED, 16),  # loading is sooner than computing an eighth
        (0.35, BlendOutcome.NOT_WORTH, 16),  # than computing all of an exact prefix, but no less
        (3.0, BlendOutcome.FULL, 0),  # than nothing: the tier is passed over
    ],
)
def test_what_the_tier_brings_decides_between_blending_loading_and_computing(
    model, tmp_path, computes, outcome, prefix
):
    """*computes* is the model's speed, as a multiple of what the tier brings."""
    prompt = [*HEAD[:16], SEPARATOR, *PROMPT]
    first = [5, SEPARATOR, *SEGMENTS[2], SEPARATOR, 6]
    with over_a_link(model, tmp_path, ManualClock()) as (engine, blending):
        blending.precompute(SEGMENTS)
        CachedModel(model, engine).prefill(HEAD)
        assert blending.prefill(first).report.outcome is BlendOutcome.BLENDED
        brings = engine._chunks.stack.tiers[0].link.tokens_rate
    rate = {"compute_rate": computes * brings}
    with over_a_link(model, tmp_path, ManualClock(), **rate) as (engine, blending):
        # Nothing is known of the tier: it is tried.
        assert blending.prefill(first).report.outcome is BlendOutcome.BLENDED
        made = blending.prefill(prompt)
        assert (made.report.outcome, made.report.prefix) == (outcome, prefix)
        if outcome is not BlendOutcome.BLENDED:
            assert off(made.logits, full(model, prompt)[-1]) <= 1e-5


def test_layers_are_loaded_while_others_are_computed(model, tmp_path):
    """All of them before the model has computed one, as nothing else keeps them back."""
    with opened(model, tmp_path) as (_, blending):
        blending.precompute(SEGMENTS)
        loaded, seen = threading.Event(), []
        rotate = blending.blender.rotation.rotate

        def last_one(layer, planes, runs):
            rotate(layer, planes, runs)
            if layer == blending.blender.layers - 1:
                loaded.set()

        def first_layer(*_):
            seen.append(loaded.wait(60))

        blending.blender.rotation.rotate = last_one
        handle = model.model.layers[0].register_forward_hook(first_layer)
        try:
            made = blending.prefill(PROMPT)
        finally:
            handle.remove()
        assert made.report.outcome is BlendOutcome.BLENDED
        assert seen == [True]


@pytest.mark.thorough
def test_a_damaged_segment_is_a_hole(model, tmp_path):
    """Whatever of it is damaged: the prompt is blended without it, or computed."""
    with opened(model, tmp_path, memory=False) as (_, blending):
        blending.precompute(SEGMENTS)
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 4096)
    assert len(files) >= SIZES // 8 - len(SEGMENTS)
    for number, file in enumerate(files):
        with file.open("r+b") as damaged:
            damaged.seek(4096 + 97 * number % (file.stat().st_size - 4096))
            byte = damaged.read(1)
            damaged.seek(-1, 1)
            damaged.write(bytes([byte[0] ^ 1]))
        with opened(model, tmp_path, memory=False, ratio=0.995) as (engine, blending):
            made = blending.prefill(PROMPT)
            assert off(made.logits, full(model, PROMPT)[-1]) <= 1e-5
            engine.clear(PROMPT)
            blending.precompute(SEGMENTS)


class Losing:
    """A cache of segments whose reads lose the last segment at a layer, a number of times."""

    def __init__(self, inner, layer, times):
        self.inner, self.layer, self.times = inner, layer, times

    def __getattr__(self, name):
        return getattr(self.inner, name)

    @contextmanager
    def retrieve_layers(self, *args, **kwargs):
        with self.inner.retrieve_layers(*args, **kwargs) as layers:
            self.times -= 1
            yield LosingLayers(layers, self.layer) if self.times >= 0 else layers


class LosingLayers:
    def __init__(self, inner, layer):
        self.inner, self.layer, self.given = inner, layer, -1

    def __next__(self):
        self.given = next(self.inner)
        return self.given

    @property
    def parts(self):
        parts = self.inner.parts
        lost = self.given >= self.layer
        return replace(parts, segments=parts.segments[:-1]) if lost else parts

    def result(self):
        return self.inner.result()


@pytest.mark.thorough
@pytest.mark.parametrize("layer", [1, 3])
def test_a_segment_that_is_lost_while_the_model_computes_is_not_used(model, tmp_path, layer):
    with opened(model, tmp_path) as (_, blending):
        blending.precompute(SEGMENTS)
        for times, outcome in ((1, BlendOutcome.BLENDED), (5, BlendOutcome.FAILED)):
            blending._segments = Losing(blending._segments, layer, times)
            assert blending.prefill(PROMPT).report.outcome is outcome
        blending._segments = blending._segments.inner.inner


@pytest.mark.thorough
def test_two_engines_share_segments_through_a_folder(model, tmp_path):
    with opened(model, tmp_path) as (_, blending):
        blending.precompute(SEGMENTS)
        wanted = blending.prefill(PROMPT).logits
    with opened(new(), tmp_path) as (_, blending):
        made = blending.prefill(PROMPT)
        assert made.report.outcome is BlendOutcome.BLENDED
        assert torch.equal(made.logits, wanted)


@pytest.mark.thorough
def test_threads_blend_and_compute_beside_each_other(model, tmp_path):
    """Hooks act on the caches of their own requests."""
    results: dict[str, list[torch.Tensor]] = {"blended": [], "exact": []}
    with opened(model, tmp_path) as (_, blending):
        blending.precompute(SEGMENTS)
        wanted = {"blended": blending.prefill(PROMPT).logits, "exact": full(model, PROMPT)[-1]}

        def blended():
            for _ in range(20):
                results["blended"].append(blending.prefill(PROMPT).logits)

        def exact():
            for _ in range(20):
                results["exact"].append(full(model, PROMPT)[-1])

        threads = [threading.Thread(target=work) for work in (blended, exact, blended)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert [len(made) for made in results.values()] == [40, 20]
    for kind, made in results.items():
        differ = [off(logits, wanted[kind]) for logits in made]
        assert not any(differ), (kind, differ)


def test_weights_that_changed_in_memory_are_not_blended_by_the_former_ones_record(tmp_path):
    model = new()
    with opened(model, tmp_path) as (_, blending):
        blending.precompute(SEGMENTS)
        former = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict({name: tensor * 0.9 for name, tensor in former.items()})
        for hit in (0, (len(PROMPT) - 1) // 8 * 8):
            made = blending.prefill(PROMPT)
            assert made.report.outcome is BlendOutcome.NO_RECORD
            assert made.report.prefix == hit
            assert off(made.logits, full(model, PROMPT)[-1]) <= 1e-5
        batch = blending.prefill_batch([PROMPT, PROMPT[3:]])
        assert {report.outcome for report in batch.reports} == {BlendOutcome.NO_RECORD}
        model.load_state_dict(former)
        assert blending.prefill(PROMPT).report.outcome is BlendOutcome.BLENDED
