"""Torch forms of functions of other packages. The package computes the value, the torch form is recorded, both are compared."""
