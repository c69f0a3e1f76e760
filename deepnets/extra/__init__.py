"""Services beside the story: what has been trained, in other programs. Only commands import them."""
