"""Put the packages of a wheel inside of one package.

    gen/…, runtime/…    ->  torch_transform_matrix/gen/…, torch_transform_matrix/runtime/…
    the entry point     ->  matrix-gen = torch_transform_matrix.gen.__main__:console

It takes the wheel that setuptools makes of the checkout, and writes another one. So what belongs to
the packages stands in pyproject.toml alone.
"""

from __future__ import annotations

import ast
import base64
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from tools.release.renaming import Renaming

__all__ = ["OUTER", "PACKAGES", "moved", "renaming_of", "write_wheel"]

OUTER = "torch_transform_matrix"
"""The package of a wheel. It is the name of the distribution, which nobody else can have."""
PACKAGES = ("gen", "runtime")
_AS_THEY_ARE = frozenset((".json",))  # facts and names of torch, which are long
_START = f'''"""A test matrix for tensor transforms, and the transform runtime that it tests.

    from {OUTER}.runtime import jit
    from {OUTER}.runtime.func import grad, vmap

``runtime`` is autograd, function transforms, ahead-of-time graphs, jit and per-sample gradients.
``gen`` makes tests of ``matrix.yaml``; its command is ``matrix-gen``. In the project's repository
both are folders of these names, without this package around them.
"""
'''


def renaming_of(files: Mapping[str, bytes]) -> Renaming:
    """Return the names that change, by the files of a wheel: the modules of the packages, and what
    their ``__init__`` imports or defines.
    """
    inside = set()
    for name in files:
        package, _, rest = name.partition("/")
        if package in PACKAGES and name.endswith(".py"):
            inside.add(f"{package}.{PurePosixPath(rest).parts[0].removesuffix('.py')}")
    for package in PACKAGES:
        names = _names_of(files[f"{package}/__init__.py"].decode())
        inside.update(f"{package}.{name}" for name in names)
    return Renaming(OUTER, inside)


def _names_of(source: str) -> Iterator[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (name.asname or name.name for name in node.names)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def moved(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of the new wheel, without its list of files.

    Raises :class:`~tools.release.renaming.RenamingError` for a name that cannot be changed.
    """
    renaming = renaming_of(files)
    result = {f"{OUTER}/__init__.py": _START.encode(), f"{OUTER}/py.typed": b""}
    for name, content in files.items():
        folder, _, rest = name.partition("/")
        if folder in PACKAGES:
            result[f"{OUTER}/{name}"] = _renamed(renaming, name, content)
        elif rest == "entry_points.txt":
            result[name] = renaming.text(content.decode()).encode()
        elif rest == "top_level.txt":
            result[name] = f"{OUTER}\n".encode()
        elif rest != "RECORD":
            result[name] = content
    return result


def _renamed(renaming: Renaming, name: str, content: bytes) -> bytes:
    suffix = PurePosixPath(name).suffix
    if suffix in _AS_THEY_ARE:
        return content
    text = content.decode()
    if suffix == ".py":
        return renaming.python(text, name).encode()
    return renaming.text(text).encode()


def write_wheel(source: str, target: str) -> None:
    """Read the wheel ``source``, and write the one with moved packages to ``target``."""
    with ZipFile(source) as archive:
        infos = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        files = moved({name: archive.read(name) for name in infos})
    record = next(name for name in infos if name.endswith(".dist-info/RECORD"))
    dated = infos[record].date_time
    rows = [f"{name},{_digest(content)},{len(content)}\n" for name, content in files.items()]
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(_entry(name, dated), content)
        archive.writestr(_entry(record, dated), "".join([*rows, f"{record},,\n"]))


def _entry(name: str, dated: tuple[int, int, int, int, int, int]) -> ZipInfo:
    entry = ZipInfo(name, dated)
    entry.compress_type = ZIP_DEFLATED
    entry.external_attr = 0o100644 << 16
    return entry


def _digest(content: bytes) -> str:
    """Return the digest of a file as a wheel lists it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
