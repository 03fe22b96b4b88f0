"""hexkv for your own engine: windows on CUDA tensors, and memory that GPUs reach directly."""
