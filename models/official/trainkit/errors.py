"""Errors that a user can put right, and how their messages list values."""

from collections.abc import Iterable


class UserError(ValueError):
    """Wrong usage or wrong input: commands print the message and exit with code 2.

    The message says what is wrong, the value, what is allowed and what to do. Any other exception
    is a fault of the program and keeps its traceback.
    """


def listing(values: Iterable[object], limit: int = 10) -> str:
    """`a, b, c and 5 more`: the first `limit` of several values, for a message."""
    shown = [str(value) for value in values]
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more
