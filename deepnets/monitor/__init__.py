"""Monitoring of a net while it trains: TensorBoard's scalars, tables and pictures."""
