"""gputune-tui: find the training settings that run fastest within a memory budget, by fair trial runs."""

__version__ = "0.1.0"
