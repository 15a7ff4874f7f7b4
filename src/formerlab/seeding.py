"""Seeds made of several parts."""

import hashlib


def mixed_seed(*parts: int | str) -> int:
    """Return a 32-bit seed that depends on every part.

    torch's CPU generator looks at the low 32 bits of its seed only, so parts that are shifted past them have no effect.
    """
    digest = hashlib.sha256(" ".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")
