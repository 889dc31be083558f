"""Training scripts as people write them, unaware of this program; each in the manner of a public one."""
