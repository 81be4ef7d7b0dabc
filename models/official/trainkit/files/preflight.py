"""Tries a bucket or folder before hours depend on it: list, write, read, remove."""

import uuid

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage

# Of Google Cloud Storage: to list and read, to write and remove too, to look at a bucket itself.
READER_ROLE, WRITER_ROLE = "roles/storage.objectViewer", "roles/storage.objectUser"
BUCKET_ROLE = "roles/storage.legacyBucketReader"

_PROBE = b"tpudet\n"


def check_storage(directory: str) -> str:
    """Lists the folder, writes a small file, reads it back and removes it.

    Args:
        directory: a folder or gs://bucket/folder; it is made if it is not there.

    Returns:
        One sentence about what was found.

    Raises:
        UserError: names the operation that failed, and what a 403 of a bucket means.
    """
    probe = f"{directory.rstrip('/')}/preflight-{uuid.uuid4().hex}"
    doing = "made"
    try:
        storage.make_folder(directory)
        doing = "listed"
        count = len(storage.list_names(directory))
        doing = "written to"
        with storage.open_file(probe, "wb") as file:
            file.write(_PROBE)
        doing = "read"
        with storage.open_file(probe, "rb") as file:
            found = file.read()
        doing = "removed from"
        storage.remove(probe)
    except OSError as error:
        raise UserError(
            f"{directory} cannot be {doing}: {storage.reason(error)}{_explain(directory, error)}"
        ) from error
    if found != _PROBE:
        raise UserError(f"{directory} gives back {found!r} where {_PROBE!r} was written")
    return f"can list ({count} names), write, read and remove files"


def _explain(directory: str, error: OSError) -> str:
    """Advice on a bucket that refuses access; empty for other errors."""
    refused = isinstance(error, PermissionError) or "403" in str(error)
    if not refused or not storage.is_remote(directory):
        return ""
    bucket = "/".join(directory.split("/")[:3])
    whole = f", and to list the whole bucket, not a folder in it, {BUCKET_ROLE} as well"
    return (
        ". The service account that this machine runs as lacks a role. The one that reads data "
        f"needs {READER_ROLE}, the one that trains needs {WRITER_ROLE}"
        f"{whole if directory.rstrip('/') == bucket else ''}:\n  gcloud storage buckets "
        f"add-iam-policy-binding {bucket} --member serviceAccount:ACCOUNT --role {WRITER_ROLE}\n"
        "ACCOUNT is printed by: gcloud config get-value account. Outside Google's machines: gcloud "
        "auth application-default login"
    )
