"""The block pool, leases on it, and copies from and to a device."""
