"""Reading records: the calls of all files of some processes, in the order in which they began."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from hexkv.plan.lines import (
    LONGEST_LINE,
    PATTERN,
    FileHead,
    FillState,
    count,
    decode_call,
    decode_head,
    decode_state,
    unseal,
)
from hexkv.plan.trace import BadTrace
from hexkv.ports import ChunkKey, RecordedCall, RecordedKind


@dataclass(slots=True)
class Record:
    """The content of some files."""

    heads: list[FileHead] = field(default_factory=list)
    """Of each file, in order."""

    calls: list[RecordedCall] = field(default_factory=list)
    states: list[FillState] = field(default_factory=list)
    lost: int = 0
    """Calls that were not written, because they came too fast or there was no room."""

    cut: int = 0
    """Files whose last line is not whole: their process was killed."""

    @property
    def records(self) -> int:
        """The number of processes, or lives of one, in it."""
        return len({head.record for head in self.heads})


def is_record(path: Path) -> bool:
    """True if *path* is a folder, or a file whose first line is that of a record."""
    if path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            return unseal(file.readline(LONGEST_LINE)).get("do") == "record"
    except (OSError, ValueError):
        return False


def read_records(paths: Iterable[Path]) -> Record:
    """Read all calls in *paths*: files, and folders of files.

    Raises:
        BadTrace: a file cannot be read, is none of a record, or is damaged: the message names the
            line. Or two of them are of models or chunks that cannot be combined.
    """
    files = [file for path in paths for file in _files(path)]
    record = Record()
    calls: dict[str, list[RecordedCall]] = {}
    known: dict[str, dict[bytes, ChunkKey]] = {}
    opened = sorted(((_head(file), file) for file in files), key=_order)
    for head, file in opened:
        _check(record.heads, head, file)
        record.heads.append(head)
        _read(
            file, head, record, calls.setdefault(head.record, []), known.setdefault(head.record, {})
        )
    # A call is written when it ends; sort by when it began.
    began = attrgetter("began")
    record.calls = list(
        heapq.merge(*(sorted(some, key=began) for some in calls.values()), key=began)
    )
    record.states.sort(key=attrgetter("time"))
    if not record.calls:
        raise BadTrace(f"{', '.join(map(str, paths))}: no calls in it")
    return record


def _order(opened: tuple[FileHead, Path]) -> tuple[float, str, int]:
    head, _ = opened
    return head.began, head.record, head.number


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if PATTERN.fullmatch(file.name))
    if not files:
        raise BadTrace(f"{path}: no files of a record in it")
    return files


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                yield line
    except OSError as error:
        raise BadTrace(f"{path}: {error.strerror}") from error


def _head(path: Path) -> FileHead:
    try:
        return decode_head(unseal(next(_lines(path), b"")))
    except (ValueError, KeyError, RecursionError) as error:
        raise BadTrace(f"{path}, line 1: {_words(error)}") from error


def _check(before: Sequence[FileHead], head: FileHead, path: Path) -> None:
    if before and (before[0].chunk_tokens, before[0].model) != (head.chunk_tokens, head.model):
        first = before[0]
        raise BadTrace(
            f"{path}, line 1: of {head.model or 'a model'} in chunks of {head.chunk_tokens} tokens,"
            f" beside {first.model or 'one'} in chunks of {first.chunk_tokens}: read one at a time"
        )
    if any((one.record, one.number) == (head.record, head.number) for one in before):
        raise BadTrace(f"{path}, line 1: the same file of the same record twice")


def _read(
    path: Path,
    head: FileHead,
    record: Record,
    calls: list[RecordedCall],
    known: dict[bytes, ChunkKey],
) -> None:
    for number, line in enumerate(_lines(path), start=1):
        if number == 1:
            continue
        if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
            record.cut += 1
            return
        try:
            found = unseal(line)
            _take(found, head, record, calls, known)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadTrace(f"{path}, line {number}: {_words(error)}") from error


def _take(
    line: dict[str, Any],
    head: FileHead,
    record: Record,
    calls: list[RecordedCall],
    known: dict[bytes, ChunkKey],
) -> None:
    match line["do"]:
        case "state":
            record.states.append(decode_state(line, head.began))
        case "lost":
            record.lost += count(line["calls"])
        case RecordedKind.LOOKUP | RecordedKind.RETRIEVE | RecordedKind.STORE:
            calls.append(decode_call(line, head.began, known))
        case other:
            raise ValueError(f"{other!r} is not an event of a record")


def _words(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)
