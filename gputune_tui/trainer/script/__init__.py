"""A user's own script as a trial: watched, and set, through torch's hooks and the functions that every script calls."""
