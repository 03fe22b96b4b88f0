#!/usr/bin/env python3
"""Whether what serves numbers at an address is ready: exit code 0, or 1. For probes of containers.

It asks over loopback, from inside the container, so the numbers need no address outside.
"""

import sys
import urllib.error
import urllib.request

try:
    with urllib.request.urlopen(f"http://{sys.argv[1]}/readyz", timeout=5) as answer:
        print(answer.read(1000).decode(errors="replace").strip())
except (OSError, ValueError) as error:
    detail = error.read(1000).decode() if isinstance(error, urllib.error.HTTPError) else ""
    sys.exit(f"not ready: {error} {detail.strip()}")
