"""NumPy inside a node: arrays are followed, and what is done with them is recorded as torch calls."""
