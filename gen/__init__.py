"""From matrix.yaml to pytest modules, and what those modules import."""
