"""Engines over a directory that hosts share: full, read-only, taken over, and right again.

Each program is a process of its own, over a file system of its own.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from configured import CHUNK, FRAME, PROMPT, computed, hit
from hexkv.ports import ConfigError
from media.mounts import NAMESPACE, needs_mounts
from remote_engines import engine_over

MEMORY = {"store": "memory"}

BEGINNING = """
import itertools, random, subprocess, sys
from pathlib import Path
from configured import CHUNK, FRAME, PROMPT, computed, hit, settle
from remote_engines import comes_back, engine_over

root = Path(sys.argv[1])
tiers = {"store": "memory"}, {"store": "fs", "settings": {"root": str(root)}}
numbers = itertools.count()

def mount(*options):
    subprocess.run(["mount", *options, root], check=True)

def stored():
    "Chunks that the directory took, and chunks that came back."
    tokens = random.Random(next(numbers)).choices(range(50_000), k=3 * CHUNK)
    shared = engine.store(tokens, computed(tokens)).tiers.get("fs", 0)
    return shared // CHUNK, hit(engine, tokens) // CHUNK

def back():
    "Whether the directory takes chunks again by itself, in time."
    comes_back(lambda: stored()[0] == 3)
    return True

def shared():
    "Chunks of PROMPT that the directory alone serves."
    engine.clear(tiers=["memory"])
    return hit(engine, PROMPT) // CHUNK
"""

FULL = """
mount("-t", "tmpfs", "-o", f"size={6 * FRAME}", "none")
with engine_over(*tiers) as engine:
    kept = engine.store(PROMPT, computed()).tiers["fs"] // CHUNK
    print(0 < kept < 8, hit(engine) // CHUNK, shared() == kept)
    print(stored(), stored())
    settle(engine)
    print(sorted(path.name[:5] for path in root.glob("??/*") if path.suffix != ".hexkv"))
    mount("-o", f"remount,size={100 * FRAME}")
    print(back(), engine.clear(tiers=["memory"]).chunks > 0)
    print(engine.store(PROMPT, computed()).dropped_tokens, shared())
"""

READ_ONLY = """
mount("-t", "tmpfs", "none")
with engine_over(*tiers) as engine:
    print(stored(), engine.store(PROMPT, computed()).tiers["fs"] // CHUNK)
    mount("-o", "remount,ro")
    print({stored() for _ in range(6)}, shared())
    print(engine.health().tiers[1].writing, engine.health().tiers[1].reading)
with engine_over(*tiers) as engine:
    print(shared(), stored())
    mount("-o", "remount,rw")
    print(back(), shared())
"""

UNMOUNTED = """
mount("-t", "tmpfs", "none")
with engine_over(*tiers) as engine:
    print(engine.store(PROMPT, computed()).tiers["fs"] // CHUNK)
    mount("--bind", "-o", "ro", "/proc/sys")
    print(stored(), stored(), shared())
    subprocess.run(["umount", root], check=True)
    print(back(), shared())
"""

ALL = len(PROMPT) // CHUNK


def said_by(program, root):
    lib = str(Path(__file__).parents[1] / "lib")
    code = f"import sys\nsys.path.insert(0, {lib!r})\n{BEGINNING}{program}"
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", code, str(root)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_mounts
def test_a_directory_that_is_full_makes_room_for_what_is_new_and_keeps_all_when_it_can(tmp_path):
    assert said_by(FULL, tmp_path) == ["True 8 True", "(3, 3) (3, 3)", "[]", "True True", "0 8"]


@needs_mounts
def test_a_directory_that_became_read_only_still_serves_what_it_has(tmp_path):
    assert said_by(READ_ONLY, tmp_path) == [
        "(3, 3) 8",
        "{(0, 3)} 8",
        "open closed",
        "8 (0, 3)",
        "True 8",
    ]


@pytest.mark.thorough
@needs_mounts
def test_a_directory_with_something_else_in_its_place_serves_nothing_until_it_is_back(tmp_path):
    assert said_by(UNMOUNTED, tmp_path) == ["8", "(0, 3) (0, 3) 0", "True 8"]


def test_a_directory_that_a_later_version_took_over_serves_nothing_and_nothing_wrong(tmp_path):
    shared = {"store": "fs", "settings": {"root": str(tmp_path)}}
    with engine_over(MEMORY, shared) as engine:
        assert engine.store(PROMPT, computed()).tiers["fs"] == len(PROMPT)
        (tmp_path / "hexkv-format.json").write_text('{"format": 3}')
        for path in tmp_path.glob("??/*.hexkv"):
            frame = bytearray(path.read_bytes())
            assert len(frame) == FRAME
            frame[8:12] = (3).to_bytes(4, "little")
            path.write_bytes(frame)
        assert hit(engine) == len(PROMPT)
        engine.clear(tiers=["memory"])
        assert hit(engine) == 0
        assert engine.store(PROMPT, computed()).stored_tokens == len(PROMPT)
        assert hit(engine) == len(PROMPT)
    with pytest.raises(ConfigError, match=r"has .*3.*, but this version knows format 2 only"):
        engine_over(MEMORY, shared)
