"""The seam: how an ATen call finds the level that handles it."""
