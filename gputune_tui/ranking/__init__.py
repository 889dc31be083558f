"""Feasibility, statistics and the leaderboard; pure."""
