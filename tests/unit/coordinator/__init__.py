"""Tests of pure parts of the coordinators."""
