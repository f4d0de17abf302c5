"""Import paths of earlier releases: thin re-exports, nothing else."""
