"""The benchmarks of the suite: one module each, found by its name; `measure(rig)` gives its rows."""
