"""Build what is released, and try it.

The folders of a checkout are ``gen`` and ``runtime``, names that any project may have. A wheel has
both inside of one package: ``renaming`` changes names in a file, ``wheel_contents`` all files of a
wheel. ``backend`` is what pip and build call, and ``trial`` is ``make release``. Nothing here is in
the wheel. ``docs/release.md`` says why it is done so.
"""
