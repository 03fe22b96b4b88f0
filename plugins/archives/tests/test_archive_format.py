"""The format of archives: nothing but whole frames comes out, whatever is in the file."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from hexkv.archives.format import ArchiveReader, Totals, end_page, head_page
from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.ports import PAGE, ChunkKey, FrameHeader, InvalidRequest, frame_bytes


def sealed(number):
    """A frame of so many hundred bytes."""
    size = 100 * number
    frame = memoryview(bytearray(frame_bytes(size)))
    key = ChunkKey(bytes([number]) * 48)
    FrameCodec(CRC32).seal(frame, FrameHeader(key, "{}", 4, "raw", size, size, 1.0))
    return bytes(frame)


FRAMES = [sealed(number) for number in (1, 2, 3)]


@given(st.data())
def test_whatever_an_archive_holds_only_whole_frames_come_out_of_it(data):
    """Cut, changed, repeated: a reader ends, in bounded memory, and trusts no size."""
    codec, totals = FrameCodec(CRC32), Totals()
    for frame in FRAMES:
        totals.add(codec.peek(memoryview(frame)))
    whole = bytearray(b"".join([head_page({}), *FRAMES, end_page(totals)]))
    for at, value in data.draw(
        st.dictionaries(st.integers(0, len(whole) - 1), st.integers(1, 255), max_size=4)
    ).items():
        whole[at] ^= value
    cut = data.draw(st.integers(0, len(whole)))
    seekable = data.draw(st.booleans())
    file = io.BytesIO(bytes(whole[:cut]))
    file.seekable = lambda: seekable
    try:
        reader = ArchiveReader(file, codec)
    except InvalidRequest:
        return
    found = []
    for header, page in reader:
        frame = bytearray(frame_bytes(header.payload_bytes))
        frame[:PAGE] = page
        if reader.fill(memoryview(frame)):
            found.append(bytes(frame))
    assert all(len(frame) in {len(f) for f in FRAMES} for frame in found)
    if reader.complete:
        assert len(found) == 3
    assert reader.whole <= cut
