"""A store of files that GPUs read directly (NVIDIA GPUDirect Storage)."""
