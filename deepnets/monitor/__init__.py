"""What one looks at while a net trains: TensorBoard's scalars, tables and pictures."""
