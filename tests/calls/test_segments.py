"""Segments: KV computed alone, found and given back wherever its tokens stand in a prompt."""

import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.blending.ports import BLEND_KINDS, BlendOutcome, BlendReport, PromptParts, SegmentRun
from hexkv.blending.segments import SegmentRules, Segments
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.ports import CounterName, HistogramName, InvalidRequest, Namespace
from mutants.caches.segment_caches import SegmentsContract
from prompts import computed, disk, empty, memory
from rigging import CHUNK, LAYOUT, NAMESPACE, rigging

SEPARATOR = [60_001, 60_002]


@pytest.mark.thorough
class TestSegments(SegmentsContract):
    """Over memory and disk; the second process on the same disk has them after a restart."""


RULES = partial(Segments, rules=SegmentRules(SEPARATOR, minimum=4))
DRAWN = random.Random(3)


def text(tokens):
    return DRAWN.choices(range(50_000), k=tokens)


SEGMENTS = [text(n) for n in (3 * CHUNK + 5, CHUNK, 2 * CHUNK - 1, 9)]


def asked(pieces, separator):
    """A prompt of *pieces*, each of which begins at one of the places."""
    prompt, places = [], []
    for piece in pieces:
        prompt += separator if prompt else []
        places.append(len(prompt))
        prompt += piece
    return prompt, places


def holds(window, segment, start):
    """Whether *window* has at *start* the KV of *segment* computed alone."""
    alone = computed(segment)
    for layer, planes in enumerate(window.memory):
        for plane, there in enumerate(planes):
            row = len(there) // window.tokens
            mine = alone.memory[layer][plane]
            if there[start * row : (start + len(segment)) * row] != mine:
                return False
    return True


def exact(window, prompt, tokens):
    return window.agrees(computed(prompt), tokens)


def test_segments_are_found_and_loaded_in_any_order_and_place(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)], segments=RULES)
    for segment in SEGMENTS:
        assert r.engine.segments.store(segment, computed(segment)).stored_tokens == len(segment)

    def check(order, separator):
        head = text(2 * CHUNK)
        r.engine.store(head, computed(head))
        prompt, places = asked([head, *(SEGMENTS[i] for i in order), text(7)], separator)
        parts = r.engine.segments.find(prompt)
        assert parts.prefix == 2 * CHUNK
        runs = [(at, at + len(SEGMENTS[i]), 0) for at, i in zip(places[1:], order, strict=False)]
        assert list(parts.segments) == [SegmentRun(*run) for run in runs]
        target = empty(prompt)
        got = r.engine.segments.retrieve(prompt, target, parts=parts)
        assert got.parts == PromptParts(len(prompt), parts.prefix, parts.segments)
        assert exact(target, prompt, parts.prefix)
        assert all(holds(target, SEGMENTS[i], at) for at, i in zip(places[1:], order, strict=False))
        before = [start for start, _, _ in parts.segments]
        assert all(not start <= a < end for a in before for start, end in parts.holes)
        assert r.at_rest()

    check([0, 1, 2, 3], SEPARATOR)
    check([3, 1, 0, 2], SEPARATOR)
    check([2, 0, 2], [])
    chunks = 2 * (4 + 1 + 2 + 1) + 2 + 4 + 2
    assert r.telemetry.counts[CounterName.BLEND_SEGMENTS, "", "loaded"] == chunks


def test_what_is_lost_of_a_segment_is_a_hole_and_no_more(rig, tmp_path):
    """A damaged chunk costs its own tokens; an exact prompt's KV is never a segment's."""
    r = rig([disk(tmp_path)], segments=RULES)
    for segment in SEGMENTS:
        r.engine.segments.store(segment, computed(segment))
    prompt, places = asked([text(3), SEGMENTS[0], SEGMENTS[1]], SEPARATOR)
    parts = r.engine.segments.find(prompt)
    before = {f for f in tmp_path.rglob("*") if f.is_file()}
    lost = text(5)
    for name in sorted(before):
        data = name.read_bytes()
        if r.engine.segments.find(prompt).segments and _is_second(data, r, SEGMENTS[0]):
            name.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    target = empty(prompt)
    got = r.engine.segments.retrieve(prompt, target, parts=parts)
    first, second = places[1], places[2]
    rest = SegmentRun(first + 2 * CHUNK, first + len(SEGMENTS[0]), 2 * CHUNK)
    whole = SegmentRun(second, second + CHUNK)
    assert got.parts.segments == (SegmentRun(first, first + CHUNK), rest, whole)
    assert (first + CHUNK, first + 2 * CHUNK) in got.parts.holes
    assert r.engine.retrieve(prompt, empty(prompt)).hit_tokens == 0
    assert r.engine.lookup(SEGMENTS[1] + lost).hit_tokens == 0
    assert r.at_rest()


def test_parts_of_another_prompt_bring_nothing_that_is_not_in_this_one(rig):
    """Of the same length and namespace, as two requests of a host may be."""
    r = rig([memory()], segments=RULES)
    one, other = text(2 * CHUNK), text(2 * CHUNK)
    for segment in (one, other):
        r.engine.segments.store(segment, computed(segment))
    mine, places = asked([text(3), one, text(5)], SEPARATOR)
    theirs = mine[: places[1]] + other + mine[places[1] + len(other) :]
    target = empty(theirs)
    parts = r.engine.segments.find(mine)
    got = r.engine.segments.retrieve(theirs, target, parts=parts)
    assert got.parts.reused == len(other)
    assert holds(target, other, places[1])
    assert r.at_rest()


def _is_second(data, r, segment):
    """Whether a frame is that of the second chunk of *segment*."""
    part = computed(segment)
    row = len(part.memory[0][0]) // part.tokens
    return bytes(part.memory[0][0][CHUNK * row : 2 * CHUNK * row]) in data


def test_another_process_finds_segments_by_separators_and_what_it_is_told_of_anywhere(
    rig, tmp_path
):
    first = rig([disk(tmp_path)], segments=RULES)
    for segment in SEGMENTS:
        first.engine.segments.store(segment, computed(segment))
    first.engine.close()
    second = rig([memory(), disk(tmp_path)], segments=RULES)
    cut, places = asked(SEGMENTS, SEPARATOR)
    assert [run.start for run in second.engine.segments.find(cut).segments] == places
    # Without a separator all of it is one segment, and nobody stored that.
    anywhere, _ = asked([text(3), *SEGMENTS], [])
    find = second.engine.segments.find
    assert find(anywhere).reused == 0
    assert second.engine.segments.register(SEGMENTS[1]) == CHUNK
    assert [run[1] - run[0] for run in find(anywhere).segments] == [CHUNK]
    assert second.engine.segments.register(text(50)) == 0
    salted = Namespace("toy", LAYOUT, revision="1", salt="hers")
    assert second.engine.segments.find(cut, namespace=salted).reused == 0
    assert second.engine.flush()  # the disk's index has learnt all, so what goes is counted
    assert second.engine.segments.forget(SEGMENTS[1]) == 1
    assert find(anywhere).reused == 0
    second.engine.clear(namespace=NAMESPACE)
    assert second.engine.segments.find(cut).reused == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 3 * CHUNK), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.integers(0, 3),
    st.booleans(),
)
def test_parts_tile_the_prompt_and_layers_give_the_same_as_all_at_once(
    sizes, order, head, separated
):
    draw = random.Random(str((sizes, order)))
    segments = [draw.choices(range(40), k=n) for n in sizes]
    with rigging() as build:
        rules = SegmentRules(SEPARATOR if separated else (), minimum=2)
        r = build([memory()], segments=partial(Segments, rules=rules))
        for segment in segments:
            r.engine.segments.store(segment, computed(segment))
        pieces = [
            draw.choices(range(40), k=head * CHUNK),
            *(segments[i % len(segments)] for i in order),
        ]
        prompt, _ = asked([p for p in pieces if p] or [[1]], SEPARATOR if separated else [])
        r.engine.store(pieces[0], computed(pieces[0])) if pieces[0] else None
        parts = r.engine.segments.find(prompt)
        covered = sorted([(0, parts.prefix), *(run[:2] for run in parts.segments), *parts.holes])
        covered = [part for part in covered if part[0] < part[1]]
        assert [a for a, _ in covered] == [0, *(b for _, b in covered[:-1])]
        assert covered[-1][1] == len(prompt)
        whole, layered = empty(prompt), empty(prompt)
        got = r.engine.segments.retrieve(prompt, whole)
        with r.engine.segments.retrieve_layers(prompt, layered) as layers:
            assert [*layers] == list(range(LAYOUT.layers))
            assert layers.result().parts == layers.parts == got.parts
        assert whole.memory == layered.memory
        assert exact(whole, prompt, got.parts.prefix)
        for start, end, position in got.parts.segments:
            alone = prompt[start - position : start] if position else []
            assert holds_rows(whole, alone + prompt[start:end], start, end, position)
        assert r.at_rest()


def holds_rows(window, segment, start, end, position):
    alone = computed(segment)
    for layer, planes in enumerate(window.memory):
        for plane, there in enumerate(planes):
            row = len(there) // window.tokens
            mine = alone.memory[layer][plane]
            if (
                there[start * row : end * row]
                != mine[position * row : (position + end - start) * row]
            ):
                return False
    return True


@pytest.mark.thorough
def test_reports_are_counted_and_a_share_is_a_share(rig):
    r = rig([memory()], segments=RULES)
    report = BlendReport(BlendOutcome.CHECKED, 10, 20, 3, 4, select_seconds=0.5, kl=0.25)
    r.engine.segments.report(report)
    counts = r.telemetry.counts
    assert counts[CounterName.BLEND_REQUESTS, "", BlendOutcome.CHECKED] == 1
    assert [counts[CounterName.BLEND_TOKENS, "", kind] for kind in BLEND_KINDS] == [10, 20, 3, 4]
    assert (HistogramName.BLEND_KL, "", 0.25) in r.telemetry.durations
    for share in (-0.1, 1.1, float("nan"), True, "x"):
        with pytest.raises(InvalidRequest):
            r.engine.segments.find([1, 2], recomputed=share)
    with pytest.raises(InvalidRequest):
        BlendReport(BlendOutcome.FULL, prefix=-1)
    with pytest.raises(InvalidRequest):
        r.engine.segments.retrieve([1, 2], HeapKV(LAYOUT, 3))
