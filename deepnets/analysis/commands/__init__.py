"""What `scripts/analyze.py` does, a module per analysis."""
