"""Files on disks and in buckets: whole or not at all, listed, digested, claimed."""
