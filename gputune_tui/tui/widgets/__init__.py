"""Panels: each shows one thing, from values that are handed to it."""
