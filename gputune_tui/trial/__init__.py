"""One trial, seen from outside: start, watch, end."""
