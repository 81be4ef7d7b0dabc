"""Which functions read, fuse and print: the compiled ones, or the plain statements of them."""

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from tpudet.detection.submission.fusion import plain_text

PLAIN_VARIABLE = "TPUDET_PLAIN_KERNEL"


class Kernel(NamedTuple):
    """Functions of one kind; the plain ones document the arguments."""

    compiled: bool
    index_rows: Callable[..., Any]  # plain_text.index_rows
    scan: Callable[..., Any]  # plain_text.scan
    print_rows: Callable[..., Any]  # plain_text.print_rows
    fuse: Callable[..., Any]  # plain_fusion.fuse


def load_kernel(plain: bool | None = None) -> Kernel:
    """Returns the compiled functions where there are any, else the plain ones, and says so once.

    Args:
        plain: True takes the plain functions without a word, False insists on the compiled ones;
            None asks the environment (TPUDET_PLAIN_KERNEL, any value but 0) and what is installed.

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
                "The compiled kernel of tpudet.detection.submission is not there (no C compiler when "
                "tpudet was installed?): the plain NumPy path takes over, some 100 times slower. "
                "`pip install` tpudet again with a compiler to have it.",
                file=sys.stderr,
            )
    from tpudet.detection.submission.fusion import plain_fusion

    return Kernel(
        False,
        plain_text.index_rows,
        plain_text.scan,
        plain_text.print_rows,
        plain_fusion.fuse,
    )


def _compiled_kernel() -> Kernel:
    from tpudet.detection.submission.fusion import fuse, prediction_text  # pyright: ignore[reportAttributeAccessIssue]

    return Kernel(
        True,
        prediction_text.index_rows,
        prediction_text.scan,
        prediction_text.print_rows,
        fuse.fuse,
    )
