"""Commands in, events out: ask, launch, tell, store, rank."""
