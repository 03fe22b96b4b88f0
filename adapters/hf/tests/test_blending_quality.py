"""What blending may cost: bars on the two models that can tell a blender that works from one that
does not."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from hexkv.adapters.hf.trained import trained

ROOT = Path(__file__).parents[3]


@pytest.fixture
def part(monkeypatch):
    """Imports a module of the benchmark, which is in no wheel; on one thread."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "adapters" / "hf"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield lambda name: import_module(f"benchmarks.quality.{name}")
    torch.set_num_threads(threads)
    for name in [name for name in sys.modules if name.split(".")[0] == "training"]:
        monkeypatch.delitem(sys.modules, name)


def found(part, model, cases, *settings):
    blended = part("blended")
    asked = [blended.Setting(*setting) for setting in settings]
    return blended.measure(trained(model), cases, asked)


def test_lists_are_cut_between_keys_and_say_which_answers_hang_on_another_piece(part):
    segments = part("segments")
    (case,) = segments.lists(1, share=0.3)
    words = import_module("training.alias").VOCABULARY
    values, pieces = {}, {}
    for number, segment in enumerate(case.segments):
        row = iter(segment.tolist())
        for token in row:
            if token < words.name:
                key, values[key] = token // words.values, token % words.values
                pieces[key] = {number}
            else:
                older, key = token - words.ask, next(row) - words.name
                values[key], pieces[key] = values[older], pieces[older] | {number}
    asked = [token - words.ask for token in case.after.tolist()]
    assert (case.wanted - words.answer).tolist() == [values[key] for key in asked]
    assert case.across.tolist() == [len(pieces[key]) > 1 for key in asked]
    assert len(case.segments) == 4
    assert 8 < case.across.sum() < 64


def test_a_setting_is_judged_by_what_the_model_expects_after_it(part):
    blended = part("blended")
    none, unrotated, some, every = found(
        part,
        "alias",
        part("segments").lists(2),
        (1, blended.NONE, 0.0),
        (1, blended.UNROTATED, 0.0),
        (1, blended.LATER_KEYS, 0.5),
        (1, blended.ALL, 1.0),
    )
    assert every.kl < 1e-9 < some.kl < none.kl
    assert none.kl != unrotated.kl
    assert none.right_across < some.right_across == every.right_across == every.full_across
    assert none.share < some.share < every.share == 1
    # Two of five layers of all, and of the others half of what is reused, and all that is not.
    assert some.share == pytest.approx(0.5 * (none.share + 1), abs=0.01)


@pytest.mark.thorough
def test_what_leans_on_another_segment_is_found_and_computed(part):
    none, some, every = found(
        part,
        "alias",
        part("segments").lists(64),
        (0, part("blended").NONE, 0.0),
        (2, "value-deviation", 0.15),
        (0, part("blended").ALL, 1.0),
    )
    assert every.kl < 1e-9
    assert every.full_across >= 0.95
    # Else the model is no judge.
    assert none.kl >= 0.02
    assert none.right_across <= none.full_across - 0.03
    assert some.kl <= 0.002
    assert some.right_across >= some.full_across - 0.01


@pytest.mark.thorough
def test_text_reads_the_same_after_segments_that_were_moved(part):
    unrotated, some = found(
        part,
        "text",
        part("segments").pieces_of(
            import_module("training.corpus").standard_library().held_out, 64
        ),
        (0, part("blended").UNROTATED, 0.0),
        (1, "value-deviation", 0.15),
    )
    assert some.kl <= 0.0005
    assert unrotated.kl >= 50 * some.kl
