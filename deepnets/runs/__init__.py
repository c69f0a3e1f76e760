"""Executes runs and keeps them on disk: folders, locks, checkpoints, logs, results and weights."""
