"""Memory of a device: launches, copies across the bus, and the buffers between them."""
