"""Default locations: inputs under $DATA, everything that the toolkit writes under $STORAGE."""

import os


def data_path(*names: str) -> str:
    """A path under $DATA, a local folder or gs://bucket; by default `data`."""
    return _under("DATA", "data", names)


def storage_path(*names: str) -> str:
    """A path under $STORAGE, a local folder or gs://bucket; by default `output`."""
    return _under("STORAGE", "output", names)


def _under(variable: str, default: str, names: tuple[str, ...]) -> str:
    root = os.environ.get(variable) or default
    return os.path.join(root.rstrip("/") or "/", *names)
