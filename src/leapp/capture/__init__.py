"""Capture: records the calls of the user's code on a tape, one tape for each node.

Two torch modes see every call. Tensors are recognised by identity and by memory, never by class. This package knows nothing of
ports, files or backends. Its result is a :class:`~leapp.capture.replay.Replay` module that runs the recorded calls again.
"""
