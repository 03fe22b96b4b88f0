"""Too little of everything: blocks of the engine, memory, disk, and no space left at all."""

import os
import subprocess

import pytest

from engines.vllm.vllm_engines import BLOCK, prompt

pytestmark = pytest.mark.thorough

CHUNK = 64
KV_BYTES = 16 << 10


def test_evictions_and_preemptions_change_no_token(start, same, tmp_path):
    """Room for two of eight prompts, but not for the tokens that both generate; tiers that hold
    less than one of them.
    """
    disk = {"store": "disk", "budget": 6 * CHUNK * KV_BYTES, "settings": {"root": str(tmp_path)}}
    config = {
        "chunk": {"size": CHUNK},
        "pool": {"bytes": 24 * CHUNK * KV_BYTES},
        "tiers": [{"store": "memory", "budget": 8 * CHUNK * KV_BYTES}, disk],
    }
    prompts = [prompt(f"pressed {n}", 700) for n in range(8)]
    with start(
        config,
        num_gpu_blocks_override=2 * -(-700 // BLOCK) + 2,  # one of them is vLLM's own
        max_model_len=1024,
        max_num_batched_tokens=1024,
        enable_prefix_caching=True,
    ) as engine:
        for _ in range(2):
            same(engine, *prompts)
        assert same(engine, *prompts[:1])
        assert engine.metrics()["vllm:num_preemptions_total"] > 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("no small file system can be mounted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_disk_costs_hits_only(start, same, small_disk):
    disk = {"store": "disk", "settings": {"root": str(small_disk)}}
    config = {"chunk": {"size": CHUNK}, "pool": {"bytes": "64MiB"}, "tiers": [disk]}
    words = prompt("full disk", 900)
    with start(config, options={"loading": "layerwise"}) as engine:
        assert same(engine, words) == [0]
        assert same(engine, words, prompt("fuller", 900))[0] <= 2 * CHUNK
        same(engine, words)
