"""`hexkv admin`: what it prints, what it refuses, and Ctrl-C."""

import json
import logging
import signal
import subprocess
import sys

import pytest

from configured import CHUNK, built
from engines.vllm.vllm_frames import damage, frames
from hexkv.adapters.admin.cli.showing import show_namespaces, watched
from hexkv.plugins.__main__ import main
from hexkv.ports import NamespaceState, Progress, StoreError
from operating.administration import CHUNKS, TENANTS, Managed
from processes import until


@pytest.fixture
def served(folder, tmp_path):
    """An engine with one prompt, and ``hexkv(verb, ...)``."""
    admin = {"address": str(folder / "admin.sock")}
    with built(tmp_path / "disk", tenants=TENANTS, admin=admin) as engine:
        managed = Managed(engine, engine.admin, CHUNK, engine.close)
        managed.store()
        managed.hexkv = lambda *words: main(["admin", admin["address"], *words])
        yield managed


@pytest.fixture
def said(capsys):
    def read():
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return read


def test_every_verb_has_an_answer_for_people_and_one_for_programs(served, said, tmp_path):
    prompt, tier = tmp_path / "prompt.json", tmp_path / "tier.yaml"
    prompt.write_text(json.dumps(served.prompt(0)))
    tier.write_text(f"store: disk\nname: new\nsettings:\n  root: {tmp_path / 'new'}\n")
    for words, shown, key in (
        (["status"], "open; pool", "state"),
        (["tiers"], "memory", None),
        (["namespaces"], "memory: 6", None),
        (["lookup", "--tokens", str(prompt)], f"{6 * CHUNK} of {6 * CHUNK}", None),
        (["explain", "--tokens", str(prompt)], "would be found", None),
        (["pin", "me", "--tokens", str(prompt)], "6 chunks are pinned", "pin"),
        (["unpin", "me"], "pins ended", "unpin"),
        (["freeze"], "frozen", "frozen"),
        (["freeze", "--off"], "not frozen", "frozen"),
        (["flush", "--seconds", "60"], "flushed", "flushed"),
        (["copy", "disk", "memory"], "6 of 6 chunks done", "done"),
        (["move", "disk", "memory", "--oldest", "50%"], "3 of 3 chunks done", "done"),
        (["compress", "memory", "zstd"], "chunks done", "done"),
        (["drain", "memory", "--to", "disk"], "chunks done", "done"),
        (["rules", "memory", "--write", "all", "--promote"], "all", None),
        (["rules", "disk", "--budget", "1GiB", "--retries", "2"], "1 GiB", None),
        (["rules", "--compute-rate", "null", "--log-level", "warning"], "disk", None),
        (["clear", "--tokens", str(prompt)], "done", "done"),
    ):
        assert served.hexkv(*words) == 0, words
        assert shown in said()
        assert served.hexkv(*words, "--json") in (0, 1), words
        found = json.loads(said())
        assert key is None or key in found
    assert served.hexkv("tiers", "--json") == 0
    states = json.loads(said())
    assert [(one["health"]["name"], one["writes"]) for one in states] == [
        ("memory", "all"),
        ("disk", "all"),
    ]
    assert served.hexkv("attach", str(tier), "--position", "1") == 0
    assert served.hexkv("detach", "new") == 0
    assert said() == "new is attached\nnew is detached\n"
    assert served.hexkv("lookup", "--tokens", str(prompt)) == 1
    said()
    segments = json.dumps({"model": "toy", "scheme": "segment/16"})
    show_namespaces([NamespaceState(bytes(16), segments, "red", {"disk": 3})])
    assert "disk: 3 (segments)" in said()


def test_explain_names_the_first_chunk_that_misses_and_each_tier_s_reason(served, said, tmp_path):
    prompt = tmp_path / "prompt"
    prompt.write_text(" ".join(map(str, served.prompt(0))))
    keys = [key.hex() for key in served.engine.chunk_keys(served.prompt(0))]
    assert served.hexkv("clear", "--key", keys[2], "--key", keys[5]) == 0
    said()
    assert served.hexkv("explain", "--tokens", str(prompt)) == 0
    text = said()
    assert f"{2 * CHUNK} of {CHUNKS * CHUNK} tokens would be found" in text
    assert f"tokens {2 * CHUNK} to {3 * CHUNK}: memory: cleared; disk: cleared" in text
    assert served.hexkv("explain", "--key", keys[2], "--json") == 0
    (found,) = json.loads(said())
    assert found["disk"]["reason"] == "cleared"
    assert served.hexkv("lookup", "--key", keys[0], "--key", keys[2], "--json") == 1
    assert [row["tier"] for row in json.loads(said())] == ["memory", None]


def test_what_is_called_wrongly_is_said_in_one_line_that_names_it(served, capsys, tmp_path):
    several, no_tier = tmp_path / "several", tmp_path / "tier.yaml"
    several.write_text(json.dumps(served.prompt(0)))
    no_tier.write_text("- disk\n")
    served.store(1, "of the red tenant")
    for words, flag in (
        (["clear"], "--everything"),
        (["clear", "--everything", "--tenant", "red"], "--everything"),
        (["clear", "--key", "abc"], "--key"),
        (["clear", "--namespace", "zz"], "--namespace"),
        (["clear", "--tokens", str(several)], "--namespace"),
        (["clear", "--tokens", str(tmp_path / "none")], "--tokens"),
        (["copy", "memory", "disk", "--oldest", "150%"], "--oldest"),
        (["lookup"], "--tokens"),
        (["rules", "memory"], "--read"),
        (["rules", "--budget", "1GiB"], "TIER"),
        (["rules", "memory", "--log-level", "debug"], "rules"),
        (["rules", "disk", "--quota", "5GiB"], "--quota"),
        (["rules", "--compute-rate", "fast"], "--compute-rate"),
        (["rules", "--log-level", "loud"], "--log-level"),
        (["rules", "disk", "--budget", "much"], "--budget"),
        (["attach", str(no_tier)], "FILE"),
        (["attach", str(tmp_path / "none")], "FILE"),
    ):
        assert served.hexkv(*words) == 2, words
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("error: ")
        assert flag in err
    for words, why in (
        (["detach", "tape"], "tape"),
        (["clear", "--tenant", "blue"], "blue"),
        (["rules", "disk", "--budget", "1"], "tiers.disk.budget"),
    ):
        assert served.hexkv(*words) == 1
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert why in err


def test_nobody_there_is_one_line(folder, capsys):
    for address in (str(folder / "none.sock"), "127.0.0.1:1", "no address"):
        assert main(["admin", address, "status"]) == 1
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)


def test_ctrl_c_stops_a_verb_at_its_next_chunks_and_says_what_was_done(busy, caplog):
    caplog.set_level(logging.INFO, "hexkv.admin")
    there = busy()
    there.store.hang()
    command = [sys.executable, "-m", "hexkv.plugins", "admin", there.address]
    process = subprocess.Popen(
        [*command, "copy", "memory", "slow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: "begins" in caplog.text)
        process.send_signal(signal.SIGINT)
        assert "stopping" in process.stderr.readline()
        until(lambda: "wants its verb to end" in caplog.text)
        there.store.release()
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "of 12 chunks done; stopped before the end" in out
    assert there.managed.counts()["slow"] < 12
    shown = []

    def show(report):
        signal.raise_signal(signal.SIGINT)  # once all is done
        shown.append(report)

    watched("copy", lambda watch: watch(Progress(1, 1)), show)
    assert shown == [True]


def test_the_last_error_of_a_tier_is_shown_as_its_state_and_as_the_cause(served, said, tmp_path):
    assert served.hexkv("status") == 0
    assert "last error" not in said()
    (disk,) = served.engine._chunks.stack.named(["disk"])
    disk.calls.failed("write", StoreError("no space left on device"))
    assert served.hexkv("status") == 0
    (line,) = [line for line in said().splitlines() if "last error" in line]
    assert line.startswith("  disk: last error ")
    assert line.endswith(" ago: write: StoreError: no space left on device")
    assert served.hexkv("status", "--json") == 0
    tier = json.loads(said())["tiers"][1]
    assert tier["last_error"] == "write: StoreError: no space left on device"
    assert tier["last_error_time"] > 0
    assert served.hexkv("detach", "memory") == 0
    for file in frames(tmp_path / "disk"):
        damage(file)
    prompt = tmp_path / "prompt"
    prompt.write_text(" ".join(map(str, served.prompt(0))))
    said()
    for verb in ("explain", "lookup"):
        assert served.hexkv(verb, "--tokens", str(prompt)) == 1
        cause = "tier disk cannot be read: write: StoreError: no space left on device"
        assert said() == f"no namespace is known: {cause}\n"
