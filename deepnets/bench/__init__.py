"""Measures deepnets on this machine: `bench.py WHAT`; `commands/bench.py` lists the verbs and their files."""
