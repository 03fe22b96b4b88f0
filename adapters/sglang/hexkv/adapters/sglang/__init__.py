"""hexkv under SGLang: behind its hierarchical cache, or in place of it.

``hicache`` is a storage backend of SGLang's hierarchical cache, ``linker`` an external cache
linker that goes to the device's memory itself. Both name pages as SGLang does.
"""
