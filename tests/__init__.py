"""The tests of leapp. A package, so that the tables and the harness have one import name under pytest and on their own."""
