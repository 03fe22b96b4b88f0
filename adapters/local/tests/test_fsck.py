"""``hexkv fsck``: what it finds, what it repairs, and what it leaves alone."""

import json

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.fsck import run
from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.plugins.__main__ import main
from hexkv.plugins.discovery.algorithms import frame_codec
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import PAGE, FrameHeader, Item, frame_bytes

A, B, C, D = (chunk_key(name) for name in "abcd")


@pytest.fixture(scope="module")
def codec():
    return frame_codec(discover(), "xxh3-128")


@pytest.fixture
def root(tmp_path, codec):
    """A directory with whole frames of A and B."""
    root = tmp_path / "cache"
    with_frames(root, codec, A, B)
    return root


def frame_of(codec, key, size=10_000):
    frame = memoryview(bytearray(frame_bytes(size)))
    frame[PAGE : PAGE + size] = b"kv" * (size // 2)
    codec.seal(frame, FrameHeader(key, '{"model": "toy"}', 4, "raw", size, size, 1000.0))
    return frame


def with_frames(root, codec, *keys):
    store = DiskStore(root)
    store.write([Item(key, frame_of(codec, key)) for key in keys], deadline())
    assert store.used_bytes
    store.close()


def path_of(root, key):
    return root / key[16:17].hex() / f"{key.hex()}.hexkv"


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def report(capsys, *arguments):
    """The exit code, what is wrong, and the whole report."""
    code = run([*map(str, arguments), "--json"])
    found = json.loads(capsys.readouterr().out)
    return code, {it["path"]: it["fault"] for it in found["problems"]}, found


def files(root):
    return {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_clean_directory_is_clean_and_left_as_it_is(root, capsys):
    before = files(root)
    code, problems, found = report(capsys, root)
    assert (code, problems) == (0, {})
    assert found["frames"] == 2
    assert found["bytes"] == 2 * frame_bytes(10_000)
    assert files(root) == before


DAMAGES = {
    "in the header": (lambda path: flip(path, 200), "header is damaged"),
    "in the payload": (lambda path: flip(path, 5000), "payload is damaged"),
    "at the end": (lambda path: flip(path, frame_bytes(10_000) - 1), "payload is damaged"),
    "magic": (lambda path: flip(path, 0), "not a frame"),
    "short": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "the header gives"),
    "long": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "the header gives"),
    "tiny": (lambda path: path.write_bytes(b"hexkv"), "too few"),
    "empty": (lambda path: path.write_bytes(b""), "too few"),
}


@pytest.mark.parametrize(("damage", "detail"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_frame_is_found_and_set_aside(root, capsys, damage, detail):
    damage(path_of(root, A))
    data = path_of(root, A).read_bytes()
    name = path_of(root, A).relative_to(root).as_posix()

    code, problems, found = report(capsys, root)
    assert code == 1
    assert problems[name] == "damaged"
    assert detail in found["problems"][0]["detail"]
    assert path_of(root, A).read_bytes() == data

    code, problems, found = report(capsys, root, "--repair")
    assert (code, problems[name]) == (1, "damaged")
    assert (root / "quarantine" / f"{A.hex()}.hexkv").read_bytes() == data
    code, problems, found = report(capsys, root)
    assert (code, problems, found["frames"], found["quarantined"]) == (0, {}, 1, 1)


def test_frames_in_each_others_places_are_swapped_back(root, capsys):
    a, b = path_of(root, A), path_of(root, B)
    whole = a.read_bytes(), b.read_bytes()
    a.write_bytes(whole[1])
    b.write_bytes(whole[0])
    code, problems, _ = report(capsys, root, "--repair")
    assert (code, set(problems.values())) == (1, {"misplaced"})
    assert (a.read_bytes(), b.read_bytes()) == whole
    assert report(capsys, root)[:2] == (0, {})


def test_a_frame_where_nobody_looks_is_moved_where_it_belongs(root, capsys, codec):
    frame = bytes(frame_of(codec, C))
    for stray in (root / f"{C.hex()}.hexkv", root / "writing" / f"{D.hex()}.hexkv"):
        stray.write_bytes(frame)
    code, problems, found = report(capsys, root, "--repair")
    assert (code, set(problems.values())) == (1, {"misplaced"})
    assert path_of(root, C).read_bytes() == frame
    # One of the two finds the place taken.
    assert sum("its place is taken" in it["done"] for it in found["problems"]) == 1
    assert len(list((root / "quarantine").iterdir())) == 1
    assert report(capsys, root)[:2] == (0, {})


def test_what_a_dead_engine_was_writing_is_stale_and_a_living_one_s_is_not(root, capsys):
    dead = root / "writing" / f"{12345:016x}-0.tmp"
    dead.write_bytes(b"half a fr")
    store = DiskStore(root)  # buries the dead
    assert not dead.exists()
    living = root / "writing" / f"{store._directory.engine:016x}-7.tmp"
    for path in (dead, living):
        path.write_bytes(b"half a fr")
    code, problems, found = report(capsys, root)
    assert (code, problems) == (1, {dead.relative_to(root).as_posix(): "stale"})
    assert found["engines"] == 1
    living.unlink()
    store.close()
    code, problems, found = report(capsys, root, "--repair")
    assert found["problems"][0]["done"] == "removed"
    assert not dead.exists()
    assert report(capsys, root)[:2] == (0, {})


def test_a_wrong_count_is_found_and_made_anew(root, capsys):
    path_of(root, A).unlink()
    code, problems, _ = report(capsys, root)
    assert (code, problems) == (1, {".hexkv-ledger": "ledger"})
    assert report(capsys, root, "--repair")[:2] == (1, {".hexkv-ledger": "ledger"})
    assert report(capsys, root)[:2] == (0, {})


def test_foreign_files_are_named_left_alone_and_no_problem(root, capsys):
    (root / "notes").mkdir()
    (root / "notes" / "x").write_text("mine")
    (root / "README").write_text("mine")
    path_of(root, C).parent.mkdir(exist_ok=True)
    path_of(root, C).symlink_to(path_of(root, A))
    before = files(root)
    for arguments in ([root], [root, "--repair"]):
        code, problems, found = report(capsys, *arguments)
        assert (code, problems) == (0, {})
        link = path_of(root, C).relative_to(root).as_posix()
        assert set(found["foreign"]) == {"notes", "README", link}
    assert files(root).keys() == before.keys()


def test_repairing_is_refused_while_an_engine_uses_the_directory(root, capsys):
    flip(path_of(root, A), 5000)
    store = DiskStore(root)
    assert main(["fsck", str(root)]) == 1
    assert "1 engines use it" in capsys.readouterr().out
    assert main(["fsck", str(root), "--repair"]) == 1
    assert "is in use by process" in capsys.readouterr().err
    assert path_of(root, A).exists()
    store.close()


def test_a_person_is_told_what_was_found_and_what_was_done(root, capsys):
    flip(path_of(root, A), 5000)
    assert main(["fsck", str(root), "--repair"]) == 1
    said = capsys.readouterr().out
    assert "payload is damaged" in said
    assert f"moved to quarantine/{A.hex()}.hexkv" in said
    assert "1 whole frames (16 KiB), 1 damaged, 1 in quarantine, 0 foreign" in said


@pytest.mark.parametrize("there", [True, False])
def test_what_is_no_disk_tier_s_directory_is_a_wrong_call_and_stays_untouched(
    tmp_path, capsys, there
):
    if there:
        (tmp_path / "it").mkdir()
    assert main(["fsck", str(tmp_path / "it"), "--repair"]) == 2
    said = capsys.readouterr().err.replace("│", "")
    assert "nodisktier" in "".join(said.split())
    assert list(tmp_path.rglob("it/*")) == []
