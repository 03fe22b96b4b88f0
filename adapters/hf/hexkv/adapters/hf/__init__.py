"""hexkv under Hugging Face transformers."""
