#!/usr/bin/env python3
"""Exit with 0 if the metrics server at an address is ready, else with 1. For containers' probes.

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
