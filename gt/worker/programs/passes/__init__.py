"""What a worker does to a program before it makes code of it: functions from a program to a program, one a file. A pass that
has nothing to do gives back what it got. `gt.program.run` gives the same results before and after each."""
