"""Monitoring: the event stream's readers, the instruction log, worker statistics."""
