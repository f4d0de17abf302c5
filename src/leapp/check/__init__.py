"""Proof of a bundle: runs every written model on every recorded sample, then the whole pipeline in closed loop.

The files are run by the runtime that deployers use, each in an engine of its own. Nothing here knows how they were made.
"""
