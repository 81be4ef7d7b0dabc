"""Videos: their containers, and files that only have the name of one."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.trainkit.images import pixel_limit
from tpudet.trainkit.images.headers import ImageError
from tpudet.trainkit.images.video import VIDEO_EXTENSIONS, FrameReader, frame_paths

CODECS = {".avi": "MJPG", ".mp4": "mp4v", ".mov": "mp4v", ".m4v": "mp4v", ".mkv": "mp4v"}
CODECS |= {".webm": "VP80", ".mpg": "PIM1", ".mpeg": "PIM1", ".wmv": "WMV2"}


def write_video(path: Path) -> None:
    """Three frames of 64 x 48."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*CODECS[path.suffix]), 25, (64, 48))
    if not writer.isOpened():
        pytest.skip(f"this OpenCV does not write {path.suffix}")
    for _ in range(3):
        writer.write(np.full((48, 64, 3), 200, np.uint8))
    writer.release()


@pytest.mark.parametrize("extension", VIDEO_EXTENSIONS)
def test_the_containers_of_all_extensions_are_read(extension: str, tmp_path: Path) -> None:
    write_video(tmp_path / f"clip{extension}")
    paths = frame_paths(str(tmp_path / f"clip{extension}"))
    assert len(paths) == 3
    assert FrameReader().read(paths[2]).startswith(b"\xff\xd8\xff")


@pytest.mark.parametrize(
    "text",
    [
        "ffconcat version 1.0\nfile secret.avi\n",
        "ffconcat version 1.0\nfile clip.mp4\nfile clip.mp4\n",
        "#EXTM3U\n#EXTINF:5,\nsecret.avi\n#EXT-X-ENDLIST\n",
        "",
    ],
    ids=["concat", "itself", "playlist", "empty"],
)
def test_a_list_of_other_files_is_no_video(text: str, tmp_path: Path) -> None:
    """FFmpeg goes by the contents, not by the name, and would show the frames of the other file."""
    write_video(tmp_path / "secret.avi")
    (tmp_path / "clip.mp4").write_text(text)
    with pytest.raises(ImageError, match="does not begin as a video does: MP4, "):
        frame_paths(str(tmp_path / "clip.mp4"))


def test_images_numbered_like_a_series_are_no_video(tmp_path: Path) -> None:
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"a_{number}.png"), np.zeros((48, 64, 3), np.uint8))
        (tmp_path / f"a_{number}.png").rename(tmp_path / f"a_{number}.mp4")
    with pytest.raises(ImageError, match="does not begin as a video does"):
        frame_paths(str(tmp_path / "a_0.mp4"))


def test_frames_of_too_many_pixels_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(tmp_path / "clip.avi")
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 64 * 48 - 1)
    with pytest.raises(ImageError, match="64 x 48 pixels are too many"):
        frame_paths(str(tmp_path / "clip.avi"))


def test_a_video_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="cannot be opened: No such file"):
        frame_paths(str(tmp_path / "clip.avi"))
