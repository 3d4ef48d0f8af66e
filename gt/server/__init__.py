"""`python -m gt.server`: the dispatcher as a process."""
