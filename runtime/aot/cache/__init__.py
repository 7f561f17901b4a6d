"""Cuts of joint graphs on disk: a later process with the same program does not
search for them again."""
