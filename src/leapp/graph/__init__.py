"""The plain model of a pipeline: nodes, ports, wiring. No files, no engines, no tensors."""
