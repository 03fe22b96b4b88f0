"""Looking at a directory of frames that nobody else describes."""

from __future__ import annotations

import errno
import os

import pytest

from hexkv.adapters.local.survey import frame_summary
from hexkv.contracts.kit.cases import each
from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.ports import (
    KEY_BYTES,
    PAGE,
    ChunkKey,
    FrameHeader,
    InvalidRequest,
    frame_bytes,
)

CODEC = FrameCodec(CRC32)
KEY = ChunkKey(bytes(range(KEY_BYTES)))


def frame(key=KEY, payload=b"kv" * 3000, created=1000.0):
    data = bytearray(frame_bytes(len(payload)))
    data[PAGE : PAGE + len(payload)] = payload
    header = FrameHeader(key, '{"model": "toy"}', 4, "raw", len(payload), len(payload), created)
    CODEC.seal(memoryview(data), header)
    return data


def flipped(data, at):
    data[at] ^= 1
    return data


def test_frames_are_found_at_any_depth_under_any_name_newest_first(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "old").write_bytes(frame(created=1.0))
    (tmp_path / f"{KEY.hex()}.hexkv").write_bytes(frame(created=2.0))
    found = frame_summary(tmp_path, CODEC, verify=True)
    assert [path for path, _ in found.frames] == [f"{KEY.hex()}.hexkv", "a/b/old"]
    assert found.frames[0].header.tokens == 4
    assert not found.damaged


@each(
    ("data", "reason"),
    [
        (flipped(frame(), 20), "header is damaged"),
        (frame()[:-1], "bytes, but the header gives"),
        (frame() + b"\0", "bytes, but the header gives"),
        (frame()[:100], "too few"),
    ],
)
def test_what_a_header_shows_is_damage_without_verification(data, reason, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("case")
    (tmp_path / "x").write_bytes(data)
    ((path, why),) = frame_summary(tmp_path, CODEC).damaged
    assert path == "x"
    assert reason in why


def test_a_flipped_bit_in_the_payload_takes_verification_to_find(tmp_path):
    (tmp_path / "x").write_bytes(flipped(frame(), PAGE + 77))
    assert len(frame_summary(tmp_path, CODEC).frames) == 1
    ((_, why),) = frame_summary(tmp_path, CODEC, verify=True).damaged
    assert "payload is damaged" in why


def test_a_frame_under_another_chunks_name_is_damage(tmp_path):
    (tmp_path / f"{bytes(KEY_BYTES).hex()}.hexkv").write_bytes(frame())
    (tmp_path / f"{bytes([1] * KEY_BYTES).hex()}.hexkv").write_bytes(b"no frame")
    reasons = [why for _, why in frame_summary(tmp_path, CODEC).damaged]
    assert reasons == [
        "under another chunk's name",
        "named as a chunk, but does not start as a frame",
    ]


def test_what_a_store_set_aside_is_damage(tmp_path):
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / "x").write_bytes(frame())
    assert frame_summary(tmp_path, CODEC).damaged == [("quarantine/x", "set aside by the store")]


def test_files_that_are_no_frames_are_only_counted(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "empty").touch()
    (tmp_path / "hexkv-format.json").write_text("{}")
    (tmp_path / f"{KEY.hex()}.hexkv.1-1.tmp").write_bytes(frame()[:5000])
    os.mkfifo(tmp_path / "pipe")
    os.symlink(tmp_path, tmp_path / "loop")
    found = frame_summary(tmp_path, CODEC, verify=True)
    assert (found.foreign, found.unfinished) == (2, 1)
    assert not found.frames
    assert not found.damaged


def test_what_is_evicted_while_we_look_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(frame())

    class Racing(FrameCodec):
        def peek(self, page):
            raise FileNotFoundError

    found = frame_summary(tmp_path, Racing(CRC32))
    assert not found.frames
    assert not found.damaged


def test_a_folder_that_cannot_be_listed_is_told_and_not_taken_for_empty(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "chunk").write_bytes(frame())
    (tmp_path / "b" / "chunk").write_bytes(frame())
    real = os.scandir

    def scandir(path):
        if os.path.basename(path) == "a":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = frame_summary(tmp_path, CODEC)
    assert [frame.path for frame in found.frames] == ["b/chunk"]
    assert found.damaged == [("a", "cannot be listed: Permission denied")]


def test_a_place_that_is_no_directory_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(InvalidRequest, match=r"is not a directory"):
            frame_summary(place, CODEC)
