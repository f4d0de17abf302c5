"""Capture: what the user's code really did, as a tape of calls per node.

Two torch modes see every call; tensors are known by identity and by memory, never by class. This station knows nothing of
ports, files or backends: it hands over a :class:`~leapp.capture.replay.Replay` module that runs the same calls again.
"""
