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


def count_of(number: int, one: str, many: str) -> str:
    """`1 image` or `2,000 images`: a number with the words that go with it."""
    return f"{number:,} {one if number == 1 else many}"


def shorten(text: str, limit: int) -> str:
    """The first `limit` characters of a string, for a message, and how many more there are."""
    more = len(text) - limit
    return f"{text[:limit]}… ({more:,} more characters)" if more > 0 else text


def require_utf8(names: Iterable[str], what: str) -> None:
    """Refuses names that cannot be written as UTF-8, as file names and JSON strings may not.

    Args:
        names: the names.
        what: what they name, for the message, such as `file names in FOLDER`.

    Raises:
        UserError: names the first ten.
    """
    wrong = [name for name in names if not is_utf8(name)]
    if wrong:
        raise UserError(
            f"{len(wrong)} {what} cannot be written as UTF-8, as all results are: "
            f"{listing(map(ascii, wrong))}. Rename them."
        )


def is_utf8(text: str) -> bool:
    """Whether a text has no half of a character, as JSON, YAML and pickles may name one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
