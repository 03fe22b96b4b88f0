"""The output and the arguments that all commands have in common."""

from __future__ import annotations

import errno
import io
import json
import sys

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.__main__ import main
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import DType, KVLayout, Namespace

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=32)


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    monkeypatch.delenv("HEXKV_CONFIG", raising=False)


def test_signs_that_a_screen_lacks_are_replaced(tmp_path, monkeypatch):
    tiers = [{"store": "disk", "settings": {"root": tmp_path}}]
    settings = load(None, {}, {"chunk": {"size": 16}, "pool": {"bytes": "1MiB"}, "tiers": tiers})
    with build(settings, Namespace("t\n漢ö", LAYOUT)) as engine:
        engine.store(range(16), HeapKV(LAYOUT, 16))
    for encoding, shown in (("ascii", "t???"), ("latin-1", "t??ö"), ("utf-8", "t\ufffd漢ö")):
        screen = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr(sys, "stdout", screen)
        assert main(["inspect", str(tmp_path)]) == 0
        assert screen.errors == "strict"
        screen.flush()
        assert shown in screen.buffer.getvalue().decode(encoding)


def test_a_full_disk_behind_the_output_is_one_line(capsys, monkeypatch):
    class Full(io.TextIOWrapper):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full(io.BytesIO(), "utf-8"))
    assert main(["config", "show"]) == 1
    expected = "error: the output cannot be written: No space left on device\n"
    assert capsys.readouterr().err == expected


def test_a_tilde_that_the_shell_left_in_an_option_is_the_home_directory(
    capsys, tmp_path, monkeypatch
):
    (tmp_path / "hexkv.yaml").write_text("chunk: {size: 16}")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["config", "show", "--config=~/hexkv.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chunk"]["size"] == 16
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert main(["config", "show", "--config=~/hexkv.yaml"]) == 2
    assert capsys.readouterr().err.startswith("error: '~/hexkv.yaml': no home directory")
