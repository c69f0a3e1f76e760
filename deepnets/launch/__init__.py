"""Many runs: checked, written down, and executed here, in a pool or by SLURM."""
