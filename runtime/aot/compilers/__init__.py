"""What makes a function of a graph: the replay as generated Python, and the boxed
calling convention."""
