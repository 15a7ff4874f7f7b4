"""Seeds derived from several values."""

import hashlib


def mixed_seed(*values: int | str) -> int:
    """Return a hash of all values with 32 bits, because torch's CPU generator uses only the low 32 bits of a seed."""
    digest = hashlib.sha256(" ".join(map(str, values)).encode()).digest()
    return int.from_bytes(digest[:4], "big")
