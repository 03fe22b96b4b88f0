"""``PYTHONPATH=RIG:OLDER python older.py``: the backend over the host pools of an older SGLang.

Their classes are built in another way than today's, so this is no part of the suite. It ends
with an error where a page does not come back.
"""

import dataclasses
import hashlib
import os
import sys
import tempfile
import warnings

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
warnings.simplefilter("ignore")

import rig_plugin  # noqa: E402 - lies in the rig

rig_plugin.activate()

import sglang  # noqa: E402 - warns while it is imported
import torch  # noqa: E402 - likewise
from sglang.srt.mem_cache import memory_pool  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig  # noqa: E402
from sglang.srt.mem_cache.storage import StorageBackendFactory  # noqa: E402

try:
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
except ImportError:  # before 0.5.14
    from sglang.srt.mem_cache.memory_pool_host import MHATokenToKVPoolHost, MLATokenToKVPoolHost

PAGE = 4
FROM, TO = (5, 1, 9), (2, 3, 11)
SHARED = {
    "size": 64,
    "page_size": PAGE,
    "dtype": torch.float16,
    "layer_num": 3,
    "device": "cpu",
    "enable_memory_saver": False,
}


def backend(pool, root, *, latent):
    extra = {
        "backend_name": "hexkv",
        "module_path": "hexkv.adapters.sglang.hicache",
        "class_name": "HexKVStorage",
        "model": {"weights": "one"},
        "pool": {"bytes": "16MiB"},
        "tiers": [{"store": "disk", "settings": {"root": root}}],
    }
    said = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": latent,
        "enable_storage_metrics": False,
        "is_page_first_layout": False,
        "model_name": "tiny",
        "extra_config": extra,
    }
    known = {field.name for field in dataclasses.fields(HiCacheStorageConfig)}
    config = HiCacheStorageConfig(**{name: said[name] for name in said if name in known})
    made = StorageBackendFactory.create_backend("dynamic", config, pool)
    made.register_mem_pool_host(pool)
    return made


def slots(pages):
    return torch.tensor([page * PAGE + i for page in pages for i in range(PAGE)])


def check(device, kind, order):
    """One page order of one kind of pool: written in place, read in place and flat."""
    latent = kind is MLATokenToKVPoolHost
    source, target = (kind(device, 2.0, 0, PAGE, order, False, "cpu") for _ in range(2))
    source.kv_buffer.copy_(torch.randn(source.kv_buffer.shape))
    target.kv_buffer.zero_()
    keys = [hashlib.sha256(bytes([number])).hexdigest() for number in range(len(FROM))]
    with tempfile.TemporaryDirectory() as root:
        storage = backend(source, root, latent=latent)
        assert all(storage.batch_set_v1(keys, slots(FROM)))
        storage.close()
        storage = backend(target, root, latent=latent)
        assert storage.batch_exists(keys) == len(keys)
        assert all(storage.batch_get_v1(keys, slots(TO)))
        flat = storage.batch_get(keys, [target.get_dummy_flat_data_page() for _ in keys])
        storage.close()
    for one, other, page in zip(FROM, TO, flat, strict=True):
        wanted = source.get_data_page(one * PAGE)
        assert torch.equal(wanted, target.get_data_page(other * PAGE))
        assert torch.equal(wanted.flatten(), page)


def main():
    heads = memory_pool.MHATokenToKVPool(head_num=2, head_dim=8, **SHARED)
    latent = memory_pool.MLATokenToKVPool(kv_lora_rank=8, qk_rope_head_dim=4, **SHARED)
    for device, kind in ((heads, MHATokenToKVPoolHost), (latent, MLATokenToKVPoolHost)):
        for order in ("layer_first", "page_first", "page_first_direct"):
            check(device, kind, order)
    print(f"SGLang {sglang.__version__}: every layout of pages comes back")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
