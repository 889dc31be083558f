"""Numbers about the node."""
