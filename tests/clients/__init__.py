"""Programs that use leapp, in the versions that their users have. `make test-clients` runs them in a venv of their own."""
