"""Helpers shared by tests: servers as processes, deadlines, random records, raw frames, a cutting proxy."""
