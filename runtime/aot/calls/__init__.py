"""A captured program as a function: arguments in, the graph's results out, and a node of the tape
for its backward."""
