"""vLLM as processes, its scheduler around a toy model, and ranks without it."""
