"""Fetches files from web servers, whole or not at all."""

import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request

# Seconds: without a byte, and in all.
_SILENCE = 20.0
_LIMIT = 120.0
_MAX_BYTES = 1 << 29
_BLOCK = 1 << 16


def is_url(path: str) -> bool:
    """Whether a path is the address of a file on a web server."""
    return path.lower().startswith(("http://", "https://"))


def url_file_name(url: str) -> str:
    """The name of the file that a URL ends with; empty if there is none, or it is not a URL."""
    try:
        return os.path.basename(urllib.parse.unquote(urllib.parse.urlsplit(url).path))
    except ValueError:
        return ""


def fetch(url: str, *, silence: float = _SILENCE, limit: float = _LIMIT) -> bytes:
    """Returns the content of a file on a web server.

    Args:
        url: http:// or https://.
        silence: seconds without a byte after which it is given up.
        limit: seconds in all.

    Raises:
        OSError: the server or the file is not there, it is too slow, or it sends less than it said.
    """
    end = time.monotonic() + limit
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "tpudet"})
        with urllib.request.urlopen(request, timeout=silence) as response:
            announced = response.headers.get("Content-Length")
            blocks, size = [], 0
            while block := response.read1(_BLOCK):
                blocks.append(block)
                size += len(block)
                if size > _MAX_BYTES:
                    raise OSError(f"it has more than {_MAX_BYTES >> 20} MB")
                if time.monotonic() > end:
                    raise OSError(f"only {size} bytes came in {limit:g} s")
    except urllib.error.HTTPError as error:
        error.close()  # it is the response, with an open connection
        raise OSError(f"the server says {error.code} {error.reason}") from error
    except TimeoutError as error:
        raise OSError(f"the server sent nothing for {silence:g} s") from error
    except urllib.error.URLError as error:
        raise OSError(f"the server cannot be reached: {error.reason}") from error
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"the response is not usable: {error!r}") from error
    if announced is not None and announced.isdecimal() and size != int(announced):
        raise OSError(f"the download was cut off after {size} of {announced} bytes")
    return b"".join(blocks)
