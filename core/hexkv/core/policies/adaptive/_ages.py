"""Ages, in the units of the policy.

The policy's time is one tick for each chunk that a request uses. It is divided into epochs, and an
age falls into one of a few bins, two for each doubling.
"""

from __future__ import annotations

EPOCH_BITS = 6
EPOCH = 1 << EPOCH_BITS
"""The resolution of ages in ticks."""

OCTAVES = 20
"""Ages beyond ``EPOCH << OCTAVES`` (67 million chunks) are equal to the policy."""

BINS = 2 * OCTAVES

EDGES = [0.0] + [EPOCH * (1 << j // 2) * (1.5 if j % 2 else 1.0) for j in range(BINS)]
"""The start of each bin, and at the end the end of the last one."""


def bin_of(age: int) -> int:
    """The bin that *age* falls into."""
    halves = age >> (EPOCH_BITS - 1)
    octave = halves.bit_length() - 2
    if octave < 0:
        return 0
    return min(2 * octave + ((halves >> octave) & 1) + 1, BINS - 1)
