"""Ages, in the steps that all of the policy counts in.

Time is what the policy itself sees: one tick for each chunk that a request met. It is cut
into epochs, and an age falls into one of a few bins, two for each doubling.
"""

from __future__ import annotations

EPOCH_BITS = 6
EPOCH = 1 << EPOCH_BITS
"""Ticks that are not told apart."""

OCTAVES = 20
"""Ages beyond ``EPOCH << OCTAVES`` are one to the policy: 67 million chunks."""

BINS = 2 * OCTAVES

EDGES = [0.0] + [EPOCH * (1 << j // 2) * (1.5 if j % 2 else 1.0) for j in range(BINS)]
"""Where each bin begins; and, last, where the ages that have a bin of their own end."""


def bin_of(age: int) -> int:
    """The bin that *age* falls into."""
    halves = age >> (EPOCH_BITS - 1)
    octave = halves.bit_length() - 2
    if octave < 0:
        return 0
    return min(2 * octave + ((halves >> octave) & 1) + 1, BINS - 1)
