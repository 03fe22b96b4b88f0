"""Real engines, vLLM, SGLang and transformers: first tokens, tokens found, KV handed over."""
