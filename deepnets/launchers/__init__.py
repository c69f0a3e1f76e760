"""Who executes the run folders of a grid: this process, a pool of devices, or a SLURM array."""
