"""Collectors, each on parts that the test makes."""
