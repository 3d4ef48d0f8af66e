"""Compiler passes: functions from a program to a program, one per file, which a worker runs before code generation. A pass
without effect returns its argument. `gt.program.run` gives the same results before and after each pass."""
