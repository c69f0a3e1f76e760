"""A run on disk: its folder, its execution and what it leaves."""
