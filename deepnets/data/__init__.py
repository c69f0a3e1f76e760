"""What there is to learn from, and how it reaches the device."""
