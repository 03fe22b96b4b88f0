"""``python tiny_one_head.py FOLDER``: the small Llama with one KV head for all heads of queries.

Ranks that share such a model hold the same KV, each all of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tiny_llama import CONFIG, checkpoint, weights

if __name__ == "__main__":
    checkpoint(Path(sys.argv[1]), CONFIG | {"num_key_value_heads": 1}, weights(24, kv_heads=1))
