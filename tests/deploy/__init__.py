"""The deployment files, checked without a Docker engine."""
