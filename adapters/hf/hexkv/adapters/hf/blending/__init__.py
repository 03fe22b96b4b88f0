"""Prompts made of segments whose KV was computed elsewhere, under Hugging Face transformers.

``from hexkv.adapters.hf.blending.blender import Blender`` blends without an engine,
``from hexkv.adapters.hf.blending.model import BlendingModel`` with one. Nothing is imported here.
"""
