"""A user's own ops. Besides the op and its scalar reference they need only YAML in matrix.yaml, and
no other Python."""
