"""Programs written with third-party libraries: each gives the same numbers on torch and
under the drop-in."""
