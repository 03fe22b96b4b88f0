"""hexkv under Hugging Face transformers.

``from hexkv.adapters.hf.model import CachedModel`` gives a causal model its cache. Nothing
is imported here: every ``hexkv`` command imports the plugin, and torch takes seconds.
"""
