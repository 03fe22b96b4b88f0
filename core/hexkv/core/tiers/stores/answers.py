"""Check the answers of stores for kind, length and range where they enter the core.

A store is foreign code: it may answer with ``None``, with a generator that fails, or with a size
that is not a number. Accepted as an outcome, such an answer would serve a block's former content as
KV. So only the types that the port names pass, compared by exact type, which is also the cheapest
test; any other answer becomes a :class:`~hexkv.ports.StoreError` that names its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import isfinite
from operator import attrgetter
from typing import Any

from hexkv.ports import (
    KEY_BYTES,
    RAW,
    STORE_REASONS,
    ChunkKey,
    ChunkSpec,
    Corrupt,
    Entry,
    Failed,
    Hit,
    Item,
    Lease,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    Stored,
    StoreError,
    TimedOut,
    WriteOutcome,
    frame_bytes,
    share_all,
)

_MOST_BYTES = 1 << 48
"""No frame is that long: its header has six bytes for the offset where a part ends."""


class Rooms:
    """A sink for one call of one store: it records the buffers it gave, and ends with the call.

    A request for a chunk outside the batch gets ``None``: a negative index would find the memory of
    another chunk.
    """

    def __init__(self, sink: Sink, count: int) -> None:
        self.sizes: list[int | None] = [None] * count
        """The size in bytes of the last buffer given for each chunk."""

        self.foreign: StoreError | None = None
        self._sink = sink
        self._told = [0] * count
        self._over = False

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`."""
        if self._over:
            return None
        if type(index) is not int or not 0 <= index < len(self.sizes):
            self.foreign = _foreign("asked a sink for chunk", index)
            return None
        if type(size) is not int or size < 0:
            self.foreign = _foreign("asked a sink for a size", size)
            return None
        data = self._sink.room(index, size)
        self.sizes[index] = None if data is None else size
        self._told[index] = 0
        return data

    def filled(self, index: int, upto: int) -> None:
        """See :class:`hexkv.ports.Sink`. An impossible report fails the whole call."""
        if self._over:
            return
        if type(index) is not int or not 0 <= index < len(self.sizes):
            self.foreign = _foreign("reported to a sink chunk", index)
        elif type(upto) is not int:
            self.foreign = _foreign("reported to a sink a size", upto)
        elif (size := self.sizes[index]) is None or not self._told[index] <= upto <= size:
            self.foreign = StoreError(
                f"reported to a sink {upto} bytes in {_buffer(size)}, after {self._told[index]}"
            )
        else:
            self._told[index] = upto
            self._sink.filled(index, upto)

    def end(self) -> None:
        """Give no buffer from now on: the memory soon belongs to another chunk."""
        self._over = True


def read_outcomes(answer: object, rooms: Rooms) -> tuple[list[ReadOutcome], StoreError | None]:
    """Return one outcome per chunk, and the last foreign answer; each foreign answer is a failure.

    Raises:
        StoreError: the answer is not a sequence of one outcome per chunk.
        Exception: any error that iterating over it raises.
    """
    if rooms.foreign is not None:
        raise rooms.foreign
    outcomes = _rows(answer, len(rooms.sizes))
    wrong: StoreError | None = None
    for i, (outcome, size) in enumerate(zip(outcomes, rooms.sizes, strict=True)):
        if type(outcome) is Hit:
            if type(outcome.size) is int and outcome.size == size:
                continue
            wrong = StoreError(f"answered with a hit of {_size(outcome.size)} in {_buffer(size)}")
        elif _is_read(outcome):
            continue
        else:
            wrong = _foreign("answered with", outcome)
        outcomes[i] = Failed(wrong)
    return outcomes, wrong


def write_outcomes(
    answer: object, items: Sequence[Item]
) -> tuple[list[WriteOutcome], StoreError | None]:
    """Return one outcome per chunk of a write, and the last foreign answer."""
    outcomes = _rows(answer, len(items))
    wrong: StoreError | None = None
    for i, (outcome, item) in enumerate(zip(outcomes, items, strict=True)):
        if type(outcome) is Stored:
            if type(outcome.size) is int and outcome.size in (0, len(item.frame)):
                continue
            size = _size(outcome.size)
            wrong = StoreError(f"reported {size} bytes stored of a frame of {len(item.frame)}")
        elif _is_failure(outcome):
            continue
        else:
            wrong = _foreign("answered with", outcome)
        outcomes[i] = Failed(wrong)
    return outcomes, wrong


def range_outcome(answer: object, size: int) -> ReadOutcome:
    """Return the outcome of a read of *size* bytes of one frame.

    Raises:
        StoreError: the answer is not an outcome.
    """
    if isinstance(answer, Hit) and type(answer) is Hit:
        if {type(answer.size), type(answer.whole)} - {int, type(None)} or answer.size != size:
            raise StoreError(f"answered with a hit of {_size(answer.size)} in {size} bytes")
        return answer
    if _is_read(answer):
        return answer  # type: ignore[return-value] # checked by _is_read
    raise _foreign("answered with", answer)


def flags(answer: object, count: int) -> list[bool]:
    """Return *count* booleans. Booleans of numpy are accepted; other truthy values are not.

    Raises:
        StoreError: the answer has other types, or another length.
        Exception: any error that iterating over it raises.
    """
    found = _rows(answer, count)
    if not {bool}.issuperset(map(type, found)):
        found = [_flag(one) for one in found]
    return found


def entries(answer: object) -> Iterator[Entry]:
    """Yield the entries of a scan.

    Raises:
        StoreError: the answer is not an iterator, or an entry does not describe a chunk.
        Exception: any error that iterating over it raises.
    """
    if not isinstance(answer, Iterator):
        raise _foreign("answered a scan with", answer)
    for entry in answer:
        if type(entry) is not Entry:
            raise _foreign("listed", entry)
        key, size, stored = entry
        if type(key) is not bytes or len(key) != KEY_BYTES:
            raise StoreError(f"listed a key that is none: {_kind(key)}")
        if type(size) is not int or not 0 <= size < _MOST_BYTES:
            raise StoreError(f"listed a chunk of {_size(size)}")
        if type(stored) not in (float, int) or not isfinite(stored):
            raise StoreError("listed a chunk that was stored at no time")
        yield entry


def count(answer: object) -> int:
    """Return the number of chunks that a call reports.

    Raises:
        StoreError: the answer is not a non-negative integer.
    """
    if type(answer) is not int or answer < 0:
        raise _foreign("counted", answer)
    return answer


def nothing(answer: object) -> None:
    """Check the answer of a call that can only succeed or raise.

    Raises:
        StoreError: the answer is not ``None``.
    """
    if answer is not None:
        raise answered(answer)


def answered(answer: object) -> StoreError:
    """Return the error for an answer where the port defines none."""
    return _foreign("answered what has no answer with", answer)


def leases(
    answer: object, keys: Sequence[ChunkKey], owner: str
) -> tuple[list[Lease | None], StoreError | None]:
    """Return a new share of each chunk's block, owned by *owner*, and the last foreign answer.

    Unusable shares are released: those of another chunk, duplicates, and those beside a failure.

    Raises:
        StoreError: the answer is not a sequence of one answer per chunk.
        Exception: any error that iterating over it raises.
    """
    taken: list[Any] = []
    try:
        _fill(taken, answer, len(keys))
    except Exception:
        for one in taken:
            _give_back(one, owner)
        raise
    if _are_of(taken, keys, owner):
        return taken, None
    found: list[Lease | None] = []
    wrong: StoreError | None = None
    seen: set[int] = set()
    for key, one in zip(keys, taken, strict=True):
        if one is None:
            found.append(None)
            continue
        try:
            mine = id(one) not in seen and _is_of(one, key, owner)
        except Exception:  # noqa: BLE001 - foreign class
            found.append(None)
            wrong = _foreign("lent", one)
            continue
        if mine:
            found.append(one)
            seen.add(id(one))
        else:
            found.append(None)
            wrong = StoreError("did not lend a new share of the chunk asked for")
            if id(one) not in seen:
                _give_back(one, owner)
    return found, wrong


def shares(held: Sequence[Lease], owner: str) -> list[Lease]:
    """Return a lease owned by *owner* for each of *held*; some may be on memory of a store.

    Raises:
        StoreError: one of them cannot be shared; in that case none is.
    """
    taken: list[Lease] = []
    try:
        taken.extend(share_all(held, owner))
        if {owner}.issuperset(map(attrgetter("owner"), taken)):
            return taken
        why, cause = "it was shared in another name", None
    except Exception as error:  # noqa: BLE001 - foreign class
        why, cause = words(error), error
    for one in taken:
        _give_back(one, owner)
    raise StoreError(f"a lease cannot be shared: {why}") from cause


def words(error: BaseException) -> str:
    """Return an error as readable text, also where its own ``__str__`` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - foreign class
        return type(error).__name__


def _is_read(outcome: object) -> bool:
    if type(outcome) is Miss:
        return type(outcome.reason) is Reason and outcome.reason in STORE_REASONS
    if type(outcome) is Corrupt:
        return type(outcome.detail) is str
    return _is_failure(outcome)


def _is_failure(outcome: object) -> bool:
    if type(outcome) is Failed:
        return issubclass(type(outcome.error), Exception)
    return type(outcome) is TimedOut


def _flag(value: object) -> bool:
    item = getattr(value, "item", None)  # numpy's booleans, a type unknown to the core
    if callable(item):
        value = item()
    if type(value) is not bool:
        raise _foreign("answered a question with", value)
    return value


def _rows(answer: object, count: int) -> list[Any]:
    rows: list[Any] = []
    _fill(rows, answer, count)
    return rows


def _fill(rows: list[Any], answer: Any, count: int) -> None:
    """Append the *count* elements of a sequence to *rows*, up to the first error."""
    if type(answer) is not list:
        sized = hasattr(answer, "__len__") and hasattr(answer, "__getitem__")  # as arrays have
        if isinstance(answer, type) or not sized:
            raise _foreign("answered a batch with", answer)
    # One element more is enough for a sequence with a false length, or one that never ends.
    rows.extend(islice(answer, count + 1))
    if len(rows) != count:
        more = "more than " if len(rows) > count else f"{len(rows)} of "
        raise StoreError(f"answered {more}{count} chunks")


def _is_of(lease: Any, key: ChunkKey, owner: str) -> bool:
    """True if *owner* holds a lease on the whole chunk of *key*, raw or encoded.

    Checks the port, not the pool's class: memory that the core did not allocate is as good.

    Raises:
        Exception: any error that a foreign class raises, or an attribute that it lacks.
    """
    spec, payload, frame = lease.spec, lease.payload, lease.frame
    if type(spec) is not ChunkSpec or spec.key != key or lease.owner != owner:
        return False
    if type(payload) is not memoryview or type(frame) is not memoryview:
        return False
    if len(frame) != frame_bytes(len(payload)) or type(lease.size) is not int:
        return False
    whole = len(payload) == spec.raw_bytes if spec.serde == RAW else len(payload) > 0
    return whole and lease.size >= len(frame) and callable(lease.share) and callable(lease.release)


def _are_of(leases: Sequence[Any], keys: Sequence[ChunkKey], owner: str) -> bool:
    """True if :func:`_is_of` holds for each lease and no two are the same; compares by column.

    Otherwise, also on an error, the caller checks the leases one by one.
    """
    try:
        if len(leases) == 1:
            return _is_of(leases[0], keys[0], owner)
        specs = [lease.spec for lease in leases]
        if not {ChunkSpec}.issuperset(map(type, specs)):
            return False
        if [spec[0] for spec in specs] != list(keys) or len(set(map(id, leases))) < len(leases):
            return False
        # The other fields mostly equal those of the previous lease, so each shape is checked once.
        last, some = None, []
        for lease, spec in zip(leases, specs, strict=True):
            payload, frame = lease.payload, lease.frame
            kinds = type(lease), type(payload), type(frame), id(spec[2]), spec[3], spec[4]
            shape = len(payload), len(frame), lease.size, lease.owner, *kinds
            if shape != last:
                last = shape
                some.append(lease)
        return all(_is_of(lease, lease.spec.key, owner) for lease in some)
    except Exception:  # noqa: BLE001 - foreign class
        return False


def _give_back(lease: Any, owner: str) -> None:
    """Release a lease that was not requested, unless it belongs to another owner."""
    try:
        if lease.owner == owner:
            lease.release()
    except Exception:  # noqa: BLE001 - foreign class, whose lease is dropped anyway
        return


def _foreign(did: str, what: object) -> StoreError:
    return StoreError(f"{did} {_kind(what)}, which is not for it to answer")


def _kind(what: object) -> str:
    kind = what if isinstance(what, type) else type(what)
    said = "the class" if isinstance(what, type) else "a"
    return f"{said} {kind.__qualname__}"


def _size(size: object) -> str:
    return f"{size} bytes" if type(size) is int else _kind(size)


def _buffer(size: int | None) -> str:
    return "no buffer" if size is None else f"a buffer of {size} bytes"
