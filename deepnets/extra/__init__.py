"""Features that training and analysing do not need; only commands import them."""
