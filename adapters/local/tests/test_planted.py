"""What somebody else left in the place of a directory of chunks, or does to it meanwhile."""

import os
from contextlib import suppress
from functools import partial

import pytest

from depth import thorough
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.files.layout import chunks_in
from hexkv.adapters.local.fs import SharedFileStore
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.ports import ConfigError, HexKVError, Item

MARKER = "hexkv-format.json"


@pytest.fixture
def victim(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    return victim


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "cache"
    root.mkdir()
    return root


def test_nothing_is_written_through_a_link_beside_the_marker(root, victim):
    (root / f"{MARKER}.tmp").symlink_to(victim)
    with pytest.raises(ConfigError, match="is a link"):
        DiskStore(root)
    assert victim.read_text() == "precious"


@each("opened", [DiskStore, lambda root: SharedFileStore(root, ManualClock(), ttl=None)])
def test_a_marker_that_is_a_link_is_not_read(root, victim, opened):
    (root / MARKER).unlink(missing_ok=True)
    (root / MARKER).symlink_to(victim)
    with pytest.raises(HexKVError) as raised:
        opened(root)
    assert "precious" not in str(raised.value)
    assert victim.read_text() == "precious"


def test_a_folder_that_is_a_link_is_refused(root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (root / "a1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="a1 is a link"):
        DiskStore(root)


def test_a_link_to_the_root_is_the_user_s_own_choice(root, tmp_path):
    (tmp_path / "name").symlink_to(root)
    DiskStore(tmp_path / "name").close()
    assert (root / MARKER).exists()


def test_nobody_else_may_enter_a_root_that_is_made(tmp_path):
    old = os.umask(0)
    try:
        DiskStore(tmp_path / "new" / "cache").close()
    finally:
        os.umask(old)
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o777 == 0o700


def test_a_root_that_belongs_to_somebody_else_is_refused(root, monkeypatch):
    owner = os.stat(root).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:  # root's are everybody's to trust
        os.chown(root, 12345, -1)
        owner = 12345
    with pytest.raises(ConfigError, match=f"belongs to user {owner}"):
        DiskStore(root)


def test_what_has_the_ledgers_name_is_not_overwritten(root, victim):
    (root / ".hexkv-ledger").hardlink_to(victim)
    with pytest.raises(ConfigError, match="ledger is no file of its own"):
        DiskStore(root)
    assert victim.read_text() == "precious"


# --- links that are planted while the store is open, between any two of its system calls ---

A = chunk_key("a")
B = A[:-1] + bytes([A[-1] ^ 1])  # in the same folder
FOLDER, FILE = f"{A[16]:02x}", f"{A.hex()}.hexkv"
CALLS = ["open", "stat", "lstat", "replace", "unlink", "mkdir", "makedirs", "scandir"]


def use(store):
    """Call everything. What was read."""
    found = []
    for key in (A, B):
        sink, part = ListSink(), memoryview(bytearray(4))
        calls = [
            lambda key=key, sink=sink: store.read([key], sink, deadline()),
            lambda key=key, part=part: store.read_range(key, 0, part, deadline()),
            lambda key=key: store.contains([key], deadline()),
            lambda key=key: store.write([Item(key, memoryview(b"mine"))], deadline()),
            lambda: chunks_in(store._root, A[16]),
        ]
        if isinstance(store, DiskStore):
            calls.append(lambda key=key: store.quarantine([key], deadline()))
        else:
            calls.append(lambda: store._sweeper.sweep(A[16]))
            calls.append(lambda key=key: store.delete([key], deadline()))
        for call in calls:
            with suppress(HexKVError, OSError):
                call()
        found += [bytes(part), *(sink.data(0)[:4] for _ in sink.calls)]
    return found


def shared(root):
    return SharedFileStore(root, ManualClock(), ttl=1e-9)


@pytest.mark.parametrize("step", [7, *thorough(1)])
@each(
    ("opened", "name"),
    [
        *[(DiskStore, name) for name in (FOLDER, f"{FOLDER}/{FILE}", "writing", "quarantine")],
        *[(shared, name) for name in (FOLDER, f"{FOLDER}/{FILE}")],
    ],
)
def test_a_link_planted_between_two_calls_leads_nowhere(opened, name, step, tmp_path, monkeypatch):
    planted = True
    moment = 0
    while planted:
        planted, moment = False, moment + step
        work = tmp_path / opened.__name__ / name.replace("/", "-") / str(moment)
        elsewhere, root = work / "elsewhere", work / "cache"
        elsewhere.mkdir(parents=True)
        for outside in (FILE, f"{B.hex()}.hexkv", "notes"):
            (elsewhere / outside).write_bytes(b"precious")
        store = opened(root)
        store.write([Item(A, memoryview(b"mine"))], deadline())
        left = moment

        def plant(*args, real, **kwargs):
            nonlocal left, planted
            left -= 1
            if not left:
                planted = True
                with suppress(FileNotFoundError):
                    real_rename(root / name, root / "away")  # noqa: B023 - of this turn
                with suppress(FileNotFoundError):
                    target = elsewhere / FILE if name.endswith(FILE) else elsewhere  # noqa: B023
                    (root / name).symlink_to(target)  # noqa: B023
            return real(*args, **kwargs)

        real_rename = os.rename
        with monkeypatch.context() as patch:
            for call in CALLS:
                patch.setattr(os, call, partial(plant, real=getattr(os, call)))
            found = use(store)
        store.close()
        assert b"prec" not in found
        there = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
        assert there == dict.fromkeys([FILE, f"{B.hex()}.hexkv", "notes"], b"precious"), moment
    assert moment > 20
