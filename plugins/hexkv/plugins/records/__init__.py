"""The format of records: calls as lines of files. ``hexkv.plan.records`` reads them.

A record is a set of files that one process wrote. Each file begins with a line that describes the
record; then there is a line for each call, in JSON. Every line ends with its own CRC-32, so that
damage is found and not reported. Chunks are named by the first eight bytes of a digest that is
keyed by random bytes of that process, which are written nowhere: names of two records cannot be
joined with each other, or with keys anywhere else. Tokens are in no record.
"""

from hexkv.plugins.records.format import (
    NAME_BYTES,
    PATTERN,
    VERSION,
    Names,
    encode_call,
    encode_state,
    seal,
)

__all__ = [
    "NAME_BYTES",
    "PATTERN",
    "VERSION",
    "Names",
    "encode_call",
    "encode_state",
    "seal",
]
