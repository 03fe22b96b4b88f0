"""A channel between peers of one machine, by memory that they share."""
