"""Torch forms of functions of other packages: the value is theirs, the torch form is recorded, the two are compared."""
