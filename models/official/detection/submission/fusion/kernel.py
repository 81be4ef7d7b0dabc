"""Chooses the functions that read, fuse and print: compiled, or their plain reference."""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple

from tpudet.detection.submission.fusion import plain_text

PLAIN_VARIABLE = "TPUDET_PLAIN_KERNEL"


class Kernel(NamedTuple):
    """Functions of one kind; the plain ones document the arguments."""

    compiled: bool
    WatchedMap: Callable[..., AbstractContextManager[None]]  # plain_text.WatchedMap
    index_rows: Callable[..., Any]  # plain_text.index_rows
    scan: Callable[..., Any]  # plain_text.scan
    print_rows: Callable[..., Any]  # plain_text.print_rows
    fuse: Callable[..., Any]  # plain_fusion.fuse


def load_kernel(plain: bool | None = None) -> Kernel:
    """Returns the compiled functions if they are installed, else the plain ones, with a warning.

    Args:
        plain: True takes the plain functions without a warning, False requires the compiled ones;
            None depends on the environment (TPUDET_PLAIN_KERNEL, any value but 0) and on what is
            installed.

    Raises:
        ImportError: `plain` is False and the extension modules were not built.
    """
    return _load(plain)


@cache
def _load(plain: bool | None) -> Kernel:
    if plain is None and os.environ.get(PLAIN_VARIABLE, "0") not in ("", "0"):
        plain = True
    if not plain:
        try:
            return _compiled_kernel()
        except ImportError:
            if plain is False:
                raise
            print(
                "The compiled kernel of tpudet.detection.submission is not installed (no C "
                "compiler when tpudet was installed?); the plain NumPy path is used, about 100 "
                "times slower. Install a compiler and `pip install` tpudet again.",
                file=sys.stderr,
            )
    from tpudet.detection.submission.fusion import plain_fusion

    return Kernel(
        False,
        plain_text.WatchedMap,
        plain_text.index_rows,
        plain_text.scan,
        plain_text.print_rows,
        plain_fusion.fuse,
    )


def _compiled_kernel() -> Kernel:
    from tpudet.detection.submission.fusion import fuse, prediction_text  # pyright: ignore[reportAttributeAccessIssue]

    return Kernel(
        True,
        prediction_text.WatchedMap,
        prediction_text.index_rows,
        prediction_text.scan,
        prediction_text.print_rows,
        fuse.fuse,
    )
