"""Checks, freezes and executes many runs: in this process, in a pool of processes, or by SLURM."""
