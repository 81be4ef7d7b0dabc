"""The folder of drawings, checked before the images are predicted."""

from pathlib import Path

import pytest

from tpudet.detection.inspection.objects import InspectionError
from tpudet.detection.inspection.save_images import check_image_folder
from tpudet.trainkit.image_folder import list_images


def test_drawings_never_replace_the_images(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.jpg", "b.png"):
        (photos / name).touch()
    (tmp_path / "link").symlink_to(photos)
    images = list_images(str(photos), None)
    check_image_folder(str(tmp_path / "drawn"), images)
    check_image_folder(str(photos), images[1:])  # b.jpg is another file than b.png
    for folder in ("photos", "photos/", "link", "drawn/../photos"):
        with pytest.raises(InspectionError, match="would replace 1 of the images .* name another"):
            check_image_folder(f"{tmp_path}/{folder}", images)
