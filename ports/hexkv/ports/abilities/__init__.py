"""Abilities that a store, a serde, a device's window or a lease may have beside its port."""
