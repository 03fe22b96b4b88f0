"""What benchmarks measure with: turns, engines, devices, the machine, reports."""
