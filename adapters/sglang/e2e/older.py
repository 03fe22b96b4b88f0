"""``pytest older.py``: whole engines of the older SGLangs beside this one, on the same disk.

``make test-sglang-matrix`` installs them. Pages have one token: more need a GPU there.
"""

import sys
from pathlib import Path

import pytest

from engines.sglang.sglang_engines import ENVIRONMENT, PATIENT, behind, frames, prompt
from processes import until

OLDER = sorted((Path(sys.prefix) / "older").iterdir())
TOKENS = 200


@pytest.mark.parametrize("version", OLDER, ids=lambda folder: folder.name)
def test_another_process_hits_what_a_killed_one_stored(version, start, same, tmp_path):
    env = {"PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{version}"}
    disk = {"store": "disk", "settings": {"root": str(tmp_path)}}
    ours = {"pool": {"bytes": "128MiB"}, "deadlines": PATIENT, "tiers": [disk]}
    config = behind("layer_first", interface_v1=0, **ours)
    words = prompt("older", TOKENS)
    first = start(env=env, page_size=1, **config)
    assert same(first, words)[0].cached == 0
    until(lambda: len(frames(tmp_path)) >= TOKENS)
    assert first.said(f"under SGLang {version.name}")
    first.kill()
    second = start(env=env, page_size=1, **config)
    assert same(second, words)[0].storage == TOKENS - 1
    second.kill()
