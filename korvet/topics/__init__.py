"""Topics as the broker sees them: names, configs, and the directory of topics with their partition logs."""
