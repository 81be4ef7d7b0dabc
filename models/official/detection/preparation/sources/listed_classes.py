"""Reads the class list that replaces the classes which annotations define themselves."""

from collections.abc import Sequence
from typing import NamedTuple

from tpudet.trainkit.class_list import ClassEntry, match_entries, read_classes
from tpudet.trainkit.errors import UserError, listing


class ListedClasses(NamedTuple):
    """The classes of a set, and what the labels of annotations are called in their list."""

    classes: tuple[ClassEntry, ...]
    labels: dict[str, str]  # identifier in the list, by identifier in the annotations

    def translate(self, labels: Sequence[str]) -> list[str]:
        """Returns labels of annotations as identifiers of the list; unknown ones as they are."""
        return [self.labels.get(label, label) for label in labels]


def list_classes(
    own: Sequence[ClassEntry], class_list: str | None, annotations: str
) -> ListedClasses:
    """Finds the classes of annotations in a class list, by name: both may number them differently.

    Args:
        own: the classes that the annotations define.
        class_list: path of the list; None takes the own classes.
        annotations: path of the annotations, for messages.

    Raises:
        UserError: the list cannot be read, or gives an identifier of the annotations to another
            class.
    """
    if class_list is None:
        return ListedClasses(tuple(own), {})
    classes = read_classes(class_list)
    rows, contradictions = match_entries(own, classes)
    if contradictions:
        raise UserError(
            f"--annotations {annotations} and --classes {class_list} call the same class "
            f"differently: {listing(contradictions.values())}. Classes are matched by name: write "
            "the same names into both."
        )
    return ListedClasses(
        classes,
        {
            entry.identifier: classes[row].identifier
            for entry, row in zip(own, rows, strict=True)
            if row is not None
        },
    )
