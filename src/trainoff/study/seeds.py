"""Seeds, derived by hashing named parts, so that changing one part never changes the others' randomness."""

import hashlib


def derive(*parts: object) -> int:
    """A 63-bit seed for a purpose: `derive("order", "mnist", seed, epoch)` never depends on the engine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
