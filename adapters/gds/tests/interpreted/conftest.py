"""Only in the process that ``test_store.py`` starts, where Triton interprets."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
