"""Measurements of deepnets on this machine: `bench.py WHAT`, whose verbs `commands/bench.py` lists with their files."""
