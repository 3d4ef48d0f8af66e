"""Readers of what passes through GT: the instruction log, worker statistics."""
