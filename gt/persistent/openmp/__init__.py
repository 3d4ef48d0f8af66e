"""Decode in C++ with OpenMP threads: one parallel region around all steps of a call."""
