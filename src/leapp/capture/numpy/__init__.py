"""NumPy inside a node: traced arrays, whose NumPy calls are recorded as torch calls."""
