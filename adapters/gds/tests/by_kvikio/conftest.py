"""Only in the process that ``test_kvikio.py`` starts, with kvikio and a double of libcuda."""

import os

collect_ignore_glob = [] if os.environ.get("KVIKIO_COMPAT_MODE") == "ON" else ["test_*.py"]
