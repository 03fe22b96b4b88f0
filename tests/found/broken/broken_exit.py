"""A plugin module that ends the process, as scripts do that forgot to guard their main."""

import sys

sys.exit(3)
