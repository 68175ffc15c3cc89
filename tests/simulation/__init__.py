"""Tests of the simulation: the simulated Redis answers as real servers do, runs repeat."""
