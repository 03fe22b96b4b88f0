"""Holds of chunks: reads in progress, then leases."""
