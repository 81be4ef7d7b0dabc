"""The frames of a video as images: a video counts as a folder with a file for each frame."""

import os
import re
from collections.abc import Iterator

import cv2

from tpudet.trainkit.images.headers import ImageError
from tpudet.trainkit.images.pixel_limit import check_size

VIDEO_EXTENSIONS = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv")
# The first bytes of the containers with these extensions.
_CONTAINERS = re.compile(
    rb"\x00...(?:ftyp|moov|free|skip|wide|pnot)|....mdat"  # MP4 and MOV
    rb"|RIFF....AVI "
    rb"|\x1a\x45\xdf\xa3"  # Matroska and WebM
    rb"|\x00\x00\x01[\xb3\xba]"  # MPEG-1 and -2: an elementary stream or a program stream
    rb"|\x47.{187}\x47"  # MPEG-2: a transport stream
    rb"|\x30\x26\xb2\x75\x8e\x66\xcf\x11",  # ASF, of WMV
    re.DOTALL,
)
_START = 256  # bytes
_FRAME = ".frame"
_QUALITY = 95  # of the JPEG of a frame


def is_video_name(name: str) -> bool:
    """Whether a file has the extension of a video."""
    return os.path.splitext(name)[1].lower() in VIDEO_EXTENSIONS


def is_frame(path: str) -> bool:
    """Whether a path is one of `frame_paths`."""
    return path.endswith(_FRAME) and is_video_name(os.path.dirname(path))


def frame_paths(video: str, *, every: int = 1) -> list[str]:
    """Returns a path for every Nth frame: `clip.mp4/clip_000120.frame` is frame 120, from 0.

    The video is decoded once to count its frames: what its header says is often wrong.

    Raises:
        ImageError: it is no video, cannot be opened, has no frame, or has frames of more than
            `pixel_limit.MAX_PIXELS` pixels.
    """
    capture = _open(video)
    count = 0
    while capture.grab():
        count += 1
    capture.release()
    if not count:
        raise ImageError("no frame of the video can be decoded")
    stem = os.path.splitext(os.path.basename(video))[0]
    return [os.path.join(video, f"{stem}_{n:06d}{_FRAME}") for n in range(0, count, every)]


class FrameReader:
    """Reads frames as JPEG files; fast if they are requested in ascending order."""

    def __init__(self) -> None:
        self._video = ""
        self._frames: Iterator[cv2.VideoCapture] = iter(())
        self._next = 0

    def read(self, path: str) -> bytes:
        """Returns the frame of one of `frame_paths`.

        Raises:
            ImageError: the video cannot be opened, or ends before this frame.
        """
        video = os.path.dirname(path)
        number = int(path.removesuffix(_FRAME).rpartition("_")[2])
        if video != self._video or number < self._next:
            self._video, self._frames, self._next = video, _grabbed(video), 0
        for capture in self._frames:
            self._next += 1
            if self._next <= number:
                continue
            is_read, pixels = capture.retrieve()
            if not is_read:
                raise ImageError("the frame cannot be decoded")
            options = [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
            return cv2.imencode(".jpg", pixels, options)[1].tobytes()
        raise ImageError(f"the video ends after {self._next} frames")


def _grabbed(video: str) -> Iterator[cv2.VideoCapture]:
    capture = _open(video)
    try:
        while capture.grab():
            yield capture
    finally:
        capture.release()


def _open(video: str) -> cv2.VideoCapture:
    """Opens a video, never a playlist: FFmpeg goes by the contents, and opens what one names."""
    try:
        with open(video, "rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise ImageError(f"cannot be opened: {error.strerror}") from error
    if not _CONTAINERS.match(start):
        raise ImageError(
            "it does not begin as a video does: MP4, MOV, AVI, Matroska, WebM, MPEG and WMV "
            "are read"
        )
    # Other backends would take the name for that of a series of images, or of a device.
    capture = cv2.VideoCapture(video, cv2.CAP_FFMPEG)
    if not capture.isOpened():
        raise ImageError("OpenCV cannot open it as a video")
    height, width = (
        int(capture.get(side)) for side in (cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_WIDTH)
    )
    check_size(height, width)
    return capture
