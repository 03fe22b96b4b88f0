"""Families of prompts, and which prefix of one was stored with the others."""

from hypothesis import strategies as st

CHUNK = 16


@st.composite
def families(draw, members=4):
    """Prompts that share beginnings of any length, as the turns of conversations do."""
    prompts = [()]
    for number in range(members):
        parent = draw(st.sampled_from(prompts))
        kept = draw(st.integers(0, len(parent)))
        more = draw(st.integers(1, 2 * CHUNK))
        prompts.append((*parent[:kept], *(100 * number + i for i in range(more))))
    return prompts[1:]


def ends(tokens, step):
    """Where the chunks of a prompt end."""
    full = len(tokens) // CHUNK * CHUNK
    return sorted({*range(CHUNK, full + 1, CHUNK), len(tokens) // step * step} - {0})


def longest(tokens, stored):
    """The reference: the longest prefix that is made of chunks of which each was stored."""
    reached = 0
    while tokens[: reached + CHUNK] in stored and reached + CHUNK <= len(tokens):
        reached += CHUNK
    beyond = range(min(reached + CHUNK, len(tokens)), reached, -1)
    return next((end for end in beyond if tokens[:end] in stored), reached)
