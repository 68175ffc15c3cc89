"""Side-by-side measurements: the suite, and programs that run on their own."""
