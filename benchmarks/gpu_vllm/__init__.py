"""A real vLLM beside itself with hexkv, on a GPU: ``make gpu-vllm``, for any user of one."""
