"""The words of the trade as frozen values; standard library only, shared with the trial processes."""
