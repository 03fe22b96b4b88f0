"""How the models in ``hexkv/adapters/hf/models`` were made. Not part of the wheel."""
