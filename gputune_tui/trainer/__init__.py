"""One trial, from inside: the only place with torch."""
