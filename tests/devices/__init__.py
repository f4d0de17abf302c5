"""Policies whose tensors are not on the CPU. There is no GPU here: the device is one of our own, made with torch's C++ API."""
