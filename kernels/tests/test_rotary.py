"""Keys of segments are moved to where these stand, layer by layer as a model rotates them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.blending.ports import PromptParts, SegmentRun
from hexkv.kernels.rotary import RotaryMap, Rotation

WIDTH = 12


def model(raw, rotation, positions):
    """What a model with *rotation* keeps of *raw* keys at *positions*: the formula of the paper."""
    made = raw.double().clone()
    if rotation is None:
        return made
    angles = positions.double()[:, None] * rotation.frequencies.double()
    part = made[..., rotation.start : rotation.end]
    order = torch.arange(part.shape[-1])
    if rotation.interleaved:
        first, second = order[::2], order[1::2]
    else:
        first, second = order.chunk(2)
    x, y = part[..., first], part[..., second]
    turned = torch.empty_like(part)
    turned[..., first] = x * angles.cos() - y * angles.sin()
    turned[..., second] = x * angles.sin() + y * angles.cos()
    made[..., rotation.start : rotation.end] = turned
    return made


@st.composite
def rotations(draw):
    pairs = draw(st.integers(1, WIDTH // 2))
    theta, factor = draw(st.sampled_from([(1e4, 1.0), (1e6, 1.0), (1e4, 8.0)]))
    frequencies = theta ** -(torch.arange(pairs, dtype=torch.float64) / pairs) / factor
    start = draw(st.integers(0, WIDTH - 2 * pairs))
    return Rotation(frequencies, draw(st.booleans()), draw(st.integers(0, 1)), start)


@st.composite
def parts(draw):
    """A prompt's parts, each run with the position that it has in its own segment."""
    reached = draw(st.integers(0, 4))
    prefix, runs = reached, []
    for _ in range(draw(st.integers(0, 4))):
        start = reached + draw(st.integers(0, 3))
        reached = start + draw(st.integers(1, 5))
        runs.append(SegmentRun(start, reached, draw(st.sampled_from([0, start, 7, 256]))))
    return PromptParts(reached + draw(st.integers(0, 2)) or 1, prefix, tuple(runs))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), rotations()), min_size=1, max_size=3), parts(), st.integers())
def test_runs_become_what_the_model_computes_where_they_stand_and_nothing_else_moves(
    layers, prompt, seed
):
    """Whatever is rotated in each layer: parts, halves or pairs, several RoPEs, none at all."""
    drawn = torch.Generator().manual_seed(seed % 2**63)
    shape = len(layers), 2, 1, 2, prompt.tokens, WIDTH
    raw = torch.randn(*shape, generator=drawn)
    here = torch.arange(prompt.tokens)
    own = here.clone()
    for start, end, position in prompt.segments:
        own[start:end] = torch.arange(position, position + end - start)

    def kept(positions):
        made = raw.double().clone()
        for layer, rotation in enumerate(layers):
            if rotation is not None:
                made[layer, rotation.plane] = model(raw[layer, rotation.plane], rotation, positions)
        return made

    held = kept(own).float()
    still = torch.ones(prompt.tokens, dtype=torch.bool)
    for start, end, _ in prompt.segments:
        still[start:end] = False
    before = held.clone()
    RotaryMap(layers).rotate_all(held, prompt.segments)
    assert torch.allclose(held.double(), kept(here), atol=5e-6, rtol=5e-6)
    assert torch.equal(held[..., still, :], before[..., still, :])
