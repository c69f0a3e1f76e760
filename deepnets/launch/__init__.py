"""Many runs: checked, frozen, and executed in this process, in a pool of processes, or by SLURM."""
