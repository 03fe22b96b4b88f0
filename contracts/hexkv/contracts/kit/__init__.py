"""The parts of the kit that contracts share: promises, limits, cases."""
