"""SHA-256 digests of files, folders and source code, to detect changes."""

import functools
import hashlib
import importlib.util
import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import list_names, open_bytes

_BLOCK_BYTES = 1 << 22
_STAT_THREADS = 16
_TIMESTAMP_MARGIN_NS = 2 * 10**9


def file_digest(path: str) -> str:
    """Returns the digest of a file's content, or of the names and sizes of a folder's files.

    Of a folder the files of its folders count too, but not those of folders within these.

    Raises:
        UserError: there is no such file or folder.
    """
    try:
        state = storage.stat(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    if state.is_folder:
        return _folder_digest(path)
    # A file may change again within the resolution of its time stamp. ram:// has no time stamps.
    is_stable = 0 < state.modified_ns < time.time_ns() - _TIMESTAMP_MARGIN_NS
    digest = _cached_content_digest if is_stable else _content_digest
    return digest(path, state.size, state.modified_ns)


def _content_digest(path: str, size: int, modified_ns: int) -> str:
    """Returns the digest of a file; size and time are only the key of the cache."""
    digest = hashlib.sha256()
    with open_bytes(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


# Many steps read the same files of several gigabytes.
_cached_content_digest = functools.lru_cache(maxsize=256)(_content_digest)


def _folder_digest(path: str) -> str:
    with ThreadPoolExecutor(_STAT_THREADS) as pool:  # each request to a bucket takes a while

        def states(names: list[str]) -> list[storage.FileState]:
            return list(pool.map(storage.stat, [os.path.join(path, name) for name in names]))

        names = list_names(path)
        found = states(names)
        folders = [name for name, state in zip(names, found, strict=True) if state.is_folder]
        inner = [f"{name}/{own}" for name in folders for own in list_names(f"{path}/{name}")]
        found += states(inner)
    sizes = [0 if state.is_folder else state.size for state in found]  # a disk's own, of folders
    return hashlib.sha256(json.dumps([names + inner, sizes]).encode()).hexdigest()


def division_digest(division: Mapping[str, int | list[str]]) -> str:
    """Returns the digest of which image is in which split or fold; the order does not matter."""
    return hashlib.sha256(json.dumps(division, sort_keys=True).encode()).hexdigest()


@functools.cache
def code_digest(modules: tuple[str, ...]) -> str:
    """Returns the digest of the Python and Cython sources of modules and whole packages.

    Args:
        modules: dotted names; a package stands for all that is below it.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    digest = hashlib.sha256()
    for module in modules:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        path = Path(spec.origin)
        is_package = spec.submodule_search_locations is not None
        sources = sorted(path.parent.rglob("*.py*")) if is_package else [path]
        for source in sources:
            if source.suffix in (".py", ".pyx"):
                digest.update(f"{module} {source.relative_to(path.parent)}\n".encode())
                digest.update(source.read_bytes())
    return digest.hexdigest()
