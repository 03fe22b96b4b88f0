"""A store of files that GPUs read by themselves (NVIDIA GPUDirect Storage)."""
