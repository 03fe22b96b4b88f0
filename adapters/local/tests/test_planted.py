"""What somebody else left in the place of a directory of chunks, or does to it meanwhile."""

import os

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.fs import SharedFileStore
from hexkv.contracts.cases import each
from hexkv.contracts.doubles import ManualClock
from hexkv.ports import ConfigError, HexKVError

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
