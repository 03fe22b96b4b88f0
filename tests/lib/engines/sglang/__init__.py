"""SGLang as processes, and its own pools."""
