"""A kernel computes the digests that frames are sealed with."""

import random

import torch
import xxhash

from hexkv.kernels.in_triton import xxh3

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_digests_of_ranges_are_those_of_the_library():
    host = torch.randint(0, 256, (1 << 15,), dtype=torch.uint8)
    memory = host.to(DEVICE)
    draw = random.Random(1)
    parts = [(0, 248), (8, 264), (0, 1024), (0, 1032), (1024, 3072), (8, 1096), (0, 1 << 15)]
    for _ in range(10):
        start = draw.randrange(0, 20_000, 8)
        parts.append((start, start + draw.randrange(248, 9000, 8)))
    found = xxh3.ends(xxh3.digests(memory, parts).cpu().numpy(), parts)
    bare = [xxhash.xxh3_128_digest(host[s:e].numpy().tobytes()) for s, e in parts]
    assert found == bare
    for none in ([], [(0, 240)], [(4, 1028)], [(0, 1023)]):
        assert xxh3.digests(memory, none) is None
