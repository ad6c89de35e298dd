"""Proofs that one knows a secret, which do not tell it."""

from __future__ import annotations

import hmac

PROOF_BYTES = 32


def proof(secret: bytes, *words: bytes) -> bytes:
    """What only who knows the secret can say to these words; it is as good as a key, or a token, of its own."""
    return hmac.digest(secret, b"".join(words), "sha256")


def is_proof(given: bytes, secret: bytes, *words: bytes) -> bool:
    """Whether what was given proves the secret; takes as long for a near miss as for any other."""
    return hmac.compare_digest(given, proof(secret, *words))
