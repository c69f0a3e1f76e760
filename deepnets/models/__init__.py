"""Networks built from one residual unit; imports torch only."""
