"""Every node of a fleet, looked into and acted on from one place."""
