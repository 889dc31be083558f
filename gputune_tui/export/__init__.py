"""One file per target format behind one registry."""
