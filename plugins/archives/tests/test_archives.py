"""``hexkv export`` and ``hexkv import``: chunks in a file, verified on both ways, gone on with."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from hexkv.archives.format import ArchiveReader, Totals, end_page, head_page
from hexkv.archives.selection import prefix_of
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.plugins.__main__ import main
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.algorithms import frame_codec
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import (
    PAGE,
    ChunkKey,
    DType,
    FrameHeader,
    KVLayout,
    Namespace,
    frame_bytes,
)
from processes import until

CHUNK = 16
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=3, heads=2, key_width=64)
MINE = Namespace("toy", LAYOUT, revision="1")
THEIRS = Namespace("other", LAYOUT, salt="hunter2")
PROMPT = random.Random(3).choices(range(50_000), k=6 * CHUNK + 5)
LONGER = PROMPT[: 3 * CHUNK] + random.Random(4).choices(range(50_000), k=2 * CHUNK)
FULL = 6 * CHUNK
FRAME = frame_bytes(LAYOUT.chunk_bytes(CHUNK))


class Machine:
    """A directory of chunks, its configuration, and engines on it."""

    def __init__(self, folder: Path, tiers=None, **sections):
        folder.mkdir()
        self.folder = folder
        disk = {"store": "disk", "settings": {"root": str(folder / "cache")}}
        tenants = [{"name": "guest", "salt": "hunter2"}]
        wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": "4MiB"}, "tenants": tenants}
        self.wanted = wanted | {"tiers": tiers or [{"store": "memory"}, disk]} | sections
        self.config = folder / "hexkv.yaml"
        self.config.write_text(json.dumps(self.wanted))

    def engine(self, namespace=MINE):
        return build(load(self.config, {}), namespace)

    def store(self, tokens, namespace=MINE):
        with self.engine(namespace) as engine:
            engine.store(tokens, HeapKV(LAYOUT, len(tokens)).compute(tokens))

    def hits(self, tokens, namespace=MINE):
        """How many tokens are loaded, and are the right ones."""
        loaded = HeapKV(LAYOUT, len(tokens))
        with self.engine(namespace) as engine:
            got = engine.retrieve(tokens, loaded).hit_tokens
        want = HeapKV(LAYOUT, len(tokens)).compute(tokens)
        assert loaded.agrees(want, got)
        return got

    def frames(self):
        return sorted(
            path for path in self.folder.rglob("*.hexkv") if "quarantine" not in str(path)
        )


@pytest.fixture
def here(tmp_path):
    """A machine with six chunks of one model, three of a tenant's, and two more of the first."""
    machine = Machine(tmp_path / "here")
    machine.store(PROMPT)
    machine.store(LONGER)
    machine.store(PROMPT[: 3 * CHUNK], THEIRS)
    return machine


@pytest.fixture
def there(tmp_path):
    return Machine(tmp_path / "there")


@pytest.fixture
def hexkv(capsysbinary, monkeypatch):
    """Runs a command; gives the exit code, what it says in JSON, and errors."""
    monkeypatch.delenv("HEXKV_CONFIG", raising=False)

    def call(command, archive, machine, *words):
        code = main([command, str(archive), "--config", str(machine.config), "--json", *words])
        out, err = capsysbinary.readouterr()
        return code, json.loads(out) if out else None, err.decode()

    return call


@pytest.fixture
def archive(tmp_path, here, hexkv):
    """An archive of all that is there."""
    path = tmp_path / "all.hexkv"
    assert hexkv("export", path, here)[0] == 0
    return path


def test_what_was_exported_hits_where_it_was_imported(archive, there, hexkv):
    code, told, err = hexkv("import", archive, there)
    assert (code, err) == (0, "")
    assert (told["frames"], told["present"], told["well"]) == (11, 0, True)
    assert (there.hits(PROMPT), there.hits(LONGER), there.hits(PROMPT, THEIRS)) == (FULL, 80, 48)


@each(
    ("words", "frames"),
    [
        (["--model", "toy"], 8),
        (["--tenant", "guest"], 3),
        (["--tier", "disk"], 11),
    ],
)
def test_an_archive_is_of_what_was_asked_for(tmp_path, here, hexkv, words, frames):
    path = tmp_path / f"{frames}.hexkv"
    code, told, _ = hexkv("export", path, here, *words)
    assert (code, told["frames"]) == (0, frames)
    assert path.stat().st_size == 2 * PAGE + frames * FRAME


def test_a_prompt_is_taken_along_alone(tmp_path, here, there, hexkv):
    tokens, path = tmp_path / "tokens", tmp_path / "prompt.hexkv"
    tokens.write_text(json.dumps(LONGER))
    code, told, _ = hexkv("export", path, here, "--model", "toy", "--tokens", str(tokens))
    assert (code, told["frames"]) == (0, 5)
    assert hexkv("import", path, there)[0] == 0
    assert (there.hits(LONGER), there.hits(PROMPT)) == (len(LONGER), 3 * CHUNK)


def test_a_tail_goes_along_with_its_prompt(tmp_path, there, hexkv):
    disk = {"store": "disk", "tails": True, "settings": {"root": str(tmp_path / "tails")}}
    chunk = {"size": CHUNK, "tail": 4}
    machine = Machine(tmp_path / "tailed", [disk], chunk=chunk)
    machine.store(PROMPT)
    tokens, path = tmp_path / "tokens", tmp_path / "prompt.hexkv"
    tokens.write_text(json.dumps(PROMPT))
    assert hexkv("export", path, machine, "--prompt", str(tokens))[1]["frames"] == 7
    assert hexkv("import", path, there)[0] == 0
    assert there.hits(PROMPT) == FULL


def test_an_import_takes_of_an_archive_what_was_asked_for(archive, there, hexkv):
    code, told, _ = hexkv("import", archive, there, "--tenant", "guest")
    assert (code, told["frames"], told["passed"]) == (0, 3, 8)
    assert (there.hits(PROMPT), there.hits(PROMPT, THEIRS)) == (0, 48)


def test_encoded_frames_stay_as_they_are(tmp_path, there, hexkv):
    pytest.importorskip("hexkv.adapters.lossless")
    root = tmp_path / "zstd"
    disk = {"store": "disk", "serde": "zstd", "settings": {"root": str(root)}}
    machine = Machine(tmp_path / "encoded", [disk])
    tokens = [1] * CHUNK  # the KV of one token again and again: it gets smaller
    with machine.engine() as engine:
        engine.store(tokens, HeapKV(LAYOUT, CHUNK).compute([0] * CHUNK))
    (one,) = root.rglob("*.hexkv")
    path = tmp_path / "encoded.hexkv"
    assert hexkv("export", path, machine)[0] == 0
    assert hexkv("import", path, there)[0] == 0
    (other,) = there.frames()
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("cut", [PAGE // 2, PAGE, PAGE + 100, PAGE + FRAME, 3 * PAGE + 4 * FRAME])
def test_an_export_goes_on_where_it_was_cut(archive, here, hexkv, cut):
    whole = archive.read_bytes()
    archive.write_bytes(whole[:cut])
    code, told, _ = hexkv("export", archive, here)
    before = max(0, cut - PAGE) // FRAME
    assert (code, told["before"], told["frames"]) == (0, before, 11 - before)
    assert len(archive.read_bytes()) == len(whole)
    assert archive.read_bytes()[: PAGE + before * FRAME] == whole[: PAGE + before * FRAME]


def test_a_second_export_adds_what_is_new(archive, here, there, hexkv):
    here.store(PROMPT[CHUNK:])
    code, told, _ = hexkv("export", archive, here)
    assert (code, told["before"], told["frames"]) == (0, 11, 5)
    assert hexkv("import", archive, there)[1]["frames"] == 16


def test_a_cut_archive_is_used_up_to_the_cut_and_the_rest_comes_later(archive, there, hexkv):
    whole = archive.read_bytes()
    archive.write_bytes(whole[: PAGE + 4 * FRAME + 5000])
    code, told, _ = hexkv("import", archive, there)
    assert (code, told["frames"], told["cut"]) == (1, 4, True)
    archive.write_bytes(whole)
    code, told, _ = hexkv("import", archive, there)
    assert (code, told["frames"], told["present"]) == (0, 7, 4)


def test_what_was_damaged_is_refused_and_the_rest_is_used(archive, there, hexkv):
    data = bytearray(archive.read_bytes())
    data[PAGE + 2 * FRAME + 5000] ^= 1  # the payload of the third
    data[PAGE + 5 * FRAME + 100] ^= 1  # the header of the sixth
    archive.write_bytes(data)
    code, told, _ = hexkv("import", archive, there)
    assert (code, told["frames"], told["refused"]) == (1, 9, {"corrupt": 1})
    assert told["damage"][0][0] == PAGE + 5 * FRAME
    assert len(there.frames()) == 9


def test_a_chunk_that_is_damaged_at_its_source_is_not_exported(tmp_path, here, hexkv):
    damaged = here.frames()[4]
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    code, told, _ = hexkv("export", tmp_path / "a", here)
    assert (code, told["frames"], told["lost"]) == (1, 10, 1)


def test_a_namespace_of_which_nothing_can_be_read_is_told_of(tmp_path, here, hexkv):
    (mine,) = hexkv("export", tmp_path / "mine", here, "--tenant", "guest")[1]["namespaces"]
    for path in here.frames():
        if path.name.startswith(mine):
            path.write_bytes(path.read_bytes()[:-1] + b"x")
    code, told, _ = hexkv("export", tmp_path / "a", here)
    assert (code, told["frames"], told["lost"]) == (1, 8, 3)


def sealed(key, identity, size=5000, *, tokens=4, serde="raw", raw=None):
    frame = memoryview(bytearray(frame_bytes(size)))
    raw = size if raw is None else raw
    FrameCodec(CRC32).seal(frame, FrameHeader(key, identity, tokens, serde, raw, size, 1.0))
    return bytes(frame)


def written(path, *frames):
    codec, totals = FrameCodec(CRC32), Totals()
    for frame in frames:
        totals.add(codec.peek(memoryview(frame)))
    path.write_bytes(b"".join([head_page({}), *frames, end_page(totals)]))
    return path


ODD = '{"algorithm":"sha256","format":2,"scheme":"prefix/4"}'


@each(
    ("key", "identity", "why"),
    [
        (bytes(48), ODD, "none of the namespace"),
        (bytes(48), '{"algorithm":"md5"}', "which is not known"),
        (bytes(48), "no JSON", "which is not known"),
        (prefix_of(ODD) + bytes(32), ODD, "its sizes are not"),  # without a layout
    ],
)
def test_a_frame_that_is_not_what_it_says_is_refused(tmp_path, there, hexkv, key, identity, why):
    path = written(tmp_path / "odd.hexkv", sealed(ChunkKey(key), identity))
    code, told, _ = hexkv("import", path, there)
    assert (code, told["frames"]) == (1, 0)
    assert why in told["first_refused"][0][1]
    assert not there.frames()


CHUNK_BYTES = LAYOUT.chunk_bytes(CHUNK)


@each(
    ("said", "why"),
    [
        *((wrong, "sizes") for wrong in ({"tokens": 1 << 60}, {"raw": 1 << 60})),
        *((wrong, "sizes") for wrong in ({"size": CHUNK_BYTES - 1}, {"tokens": CHUNK - 1})),
        ({"tokens": CHUNK << 30, "raw": CHUNK_BYTES << 30, "size": 99, "serde": "zstd"}, "sizes"),
        ({"size": 99, "serde": "../x"}, "serde '../x' is not installed"),
        ({}, ""),
    ],
)
def test_a_header_is_compared_with_its_identity(tmp_path, archive, there, hexkv, said, why):
    page = memoryview(archive.read_bytes())[PAGE : 2 * PAGE]
    identity = frame_codec(discover(), "crc32").peek(page).identity
    whole = {"tokens": CHUNK, "raw": CHUNK_BYTES, "size": CHUNK_BYTES}
    frame = sealed(ChunkKey(prefix_of(identity) + bytes(32)), identity, **whole | said)
    path = written(tmp_path / "odd.hexkv", frame)
    code, told, _ = hexkv("import", path, there)
    assert (code, told["frames"]) == ((1, 0) if why else (0, 1))
    assert why in str(told["first_refused"])
    assert len(there.frames()) == told["frames"]


def test_no_memory_is_taken_for_a_frame_that_is_too_large(archive, there, hexkv):
    code, told, _ = hexkv("import", archive, there, "--memory", "16KiB")
    assert (code, told["refused"]) == (1, {"refused": 11})


def test_a_tier_that_takes_nothing_ends_the_import_early(archive, tmp_path, hexkv):
    disk = {"store": "disk", "budget": FRAME - 1, "settings": {"root": str(tmp_path / "full")}}
    code, told, _ = hexkv("import", archive, Machine(tmp_path / "small", [disk]))
    assert (code, told["frames"], told["stopped"]) == (1, 0, True)
    assert list(told["failed"]) == ["disk: no room"]


def test_an_archive_goes_through_a_pipe(here, there, hexkv, monkeypatch, capsysbinary):
    assert main(["export", "-", "--config", str(here.config)]) == 0
    out, err = capsysbinary.readouterr()
    assert b"11 chunks" in err
    pipe = io.BytesIO(out)
    pipe.seekable = lambda: False
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(pipe))
    code, told, _ = hexkv("import", "-", there)
    assert (code, told["frames"]) == (0, 11)


@each(
    ("words", "said"),
    [
        (["--namespace", "xyz"], "--namespace: "),
        (["--tenant", "gest"], "--tenant: there is no tenant 'gest', did you mean 'guest'?"),
        (["--tier", "disc"], "--tier: there is no tier 'disc', did you mean 'disk'?"),
        (["--tier", "memory"], "--tier: memory is memory of a process"),
        (["--memory", "much"], "--memory: "),
        (["--memory", "0"], "--memory: 0 is not 16384 bytes or more"),
        (["--prompt", "/nowhere"], "--tokens: "),
    ],
)
def test_what_means_nothing_is_said_in_one_line(tmp_path, here, hexkv, words, said):
    for command in ("export", "import"):
        path = written(tmp_path / "empty.hexkv") if command == "import" else tmp_path / "new"
        code, _, err = hexkv(command, path, here, *words)
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(f"error: {said}")


def test_a_disk_that_is_full_leaves_an_archive_that_is_gone_on_with(tmp_path, here, hexkv):
    path = tmp_path / "full.hexkv"
    most = PAGE + 5 * FRAME + 100
    # In the command's own process: to fork this one, which may have mapped much, may be refused.
    limited = f"""
import os, sys, resource  # the interpreter ignores SIGXFSZ
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
    command = ["-m", "hexkv.plugins", "export", path, "--config", here.config]
    command = [sys.executable, "-c", limited, *command]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert ended.stderr.startswith("error: the archive: ")
    code, told, _ = hexkv("export", path, here)
    assert (code, told["before"] + told["frames"]) == (0, 11)
    assert hexkv("import", tmp_path, here)[2] == "error: the archive: Is a directory\n"


def test_no_other_file_is_written_over(tmp_path, archive, here, hexkv):
    other = tmp_path / "letter"
    other.write_bytes(b"dear reader" * 1000)
    assert "not an archive" in hexkv("export", other, here)[2]
    assert other.read_bytes() == b"dear reader" * 1000
    before = archive.read_bytes()
    assert "of something else" in hexkv("export", archive, here, "--model", "toy")[2]
    assert archive.read_bytes() == before
    assert "nothing that is there" in hexkv("export", tmp_path / "x", here, "--model", "?")[2]


@pytest.mark.thorough
def test_commands_that_are_killed_again_and_again_come_to_the_same(tmp_path, here, there, hexkv):
    words = random.Random(5).choices(range(50_000), k=60 * CHUNK)
    here.store(words)
    whole = 60 + 11
    path = tmp_path / "killed.hexkv"

    def kill(command, machine, grown):
        """Kill a command once it has *grown*, unless it has ended by then."""
        arguments = [sys.executable, "-m", "hexkv.plugins", command, path]
        process = subprocess.Popen(
            [*arguments, "--config", machine.config], stdout=subprocess.DEVNULL
        )
        until(lambda: grown() or process.poll() is not None)
        process.kill()
        process.wait(60)

    for n in range(1, 6):
        least = PAGE + n * whole // 6 * FRAME
        kill("export", here, lambda: path.exists() and path.stat().st_size > least)  # noqa: B023
    assert hexkv("export", path, here)[0] == 0
    with path.open("rb") as file:
        reader = ArchiveReader(file, frame_codec(discover(), "crc32"))
        keys = [header.key for header, _ in reader]
    assert reader.complete
    assert len(keys) == len(set(keys)) == whole
    for n in range(1, 6):
        kill("import", there, lambda: len(there.frames()) > n * 10)  # noqa: B023
    assert hexkv("import", path, there)[0] == 0
    assert there.hits(words) == len(words)
