"""Stores over a server that break promises amid faults, late or of sizes."""
