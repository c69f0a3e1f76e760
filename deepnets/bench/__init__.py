"""What `scripts/bench.py` measures on this machine."""
