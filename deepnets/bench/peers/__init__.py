"""Other ways to train the same network, to compare with."""
