"""Which sizes and numbers of a node follow the batch."""
