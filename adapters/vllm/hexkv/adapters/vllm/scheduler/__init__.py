"""The scheduler side of the connector: plans of loads and saves."""
