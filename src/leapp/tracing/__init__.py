"""Tracing sessions: drives the stations from annotated code to a bundle on disk."""
