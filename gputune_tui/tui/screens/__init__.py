"""Screens: one task each."""
