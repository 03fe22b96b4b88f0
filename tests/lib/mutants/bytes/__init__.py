"""Devices, memory, serdes and checksums that break their contracts."""
