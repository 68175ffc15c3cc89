"""The benchmarks of the suite: one module each, found by its name. `measure(rig)` returns its rows."""
