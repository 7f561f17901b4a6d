"""Scripts for those who work on this project. They are not packaged."""
