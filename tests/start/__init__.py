"""Run the pages of ``docs/start`` as a reader would.

page = Page.of(path)
page.steps[0]               # Write("waves.py", "import torch…")
run(page, folder)           # raises AssertionError where a command prints something else
"""
