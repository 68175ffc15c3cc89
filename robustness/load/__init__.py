"""The clients of a robustness run, which write what they ask and are answered into its history."""
