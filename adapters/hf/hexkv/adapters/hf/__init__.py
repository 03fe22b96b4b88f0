"""hexkv under Hugging Face transformers.

``from hexkv.adapters.hf.model import CachedModel`` gives a causal model its cache. Nothing
is imported here: the plugin is looked at by every ``hexkv`` command, and torch takes seconds.
"""
