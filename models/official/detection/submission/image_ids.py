"""A list of image ids: a text file with one a line, or any submission."""

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.storage import is_file, open_file


class ImageIdsError(UserError):
    """The list cannot be used; says what to do."""


def read_ids(path: str) -> list[str]:
    """Reads image ids, one a line: a text file, or the first column of a submission CSV.

    Raises:
        ImageIdsError: there is no such file, or no id in it.
    """
    if not is_file(path):
        raise ImageIdsError(f"no file {path}: --ids FILE has an image id a line")
    with open_file(path, "rb") as file:
        text = file.read().decode("utf-8-sig", errors="replace")
    ids = [line.split(",")[0].strip().strip('"') for line in text.splitlines()]
    if ids and ids[0].lower() == "imageid":
        ids = ids[1:]
    ids = [image_id for image_id in ids if image_id]
    if not ids:
        raise ImageIdsError(f"{path} has no image id; it should have one a line")
    return ids
