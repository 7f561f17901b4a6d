"""Record the calls of torch that a command makes: descriptions of arguments, never their data.

``command`` runs the command. ``start/sitecustomize.py`` begins in each Python process of it, and
``hook`` waits there until torch is imported. Then ``call_recorder`` notes each call, and
``described`` says what its arguments are. In these processes nothing is imported but torch.
Start with ``command.py``.
"""
