"""Tests of the tool in robustness/: its checkers find planted defects, its seeds repeat."""
