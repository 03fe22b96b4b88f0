"""hexkv for engines of one's own: windows on CUDA tensors, and memory that GPUs reach directly."""
