"""The requirements of a directory for a fleet of some size."""

from hexkv.core.planning.fleet_size import FleetSize, size_fleet

__all__ = ["FleetSize", "size_fleet"]
