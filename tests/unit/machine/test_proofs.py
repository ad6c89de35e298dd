"""Proofs that one knows a secret."""

from __future__ import annotations

from shoal.machine.proofs import PROOF_BYTES, is_proof, proof


def test_only_the_same_secret_and_words_prove() -> None:
    given = proof(b"secret", b"head", b"123")
    assert len(given) == PROOF_BYTES
    assert is_proof(given, b"secret", b"head", b"123")
    assert not is_proof(given, b"another", b"head", b"123")
    assert not is_proof(given, b"secret", b"agent", b"123")
    assert not is_proof(given[:-1], b"secret", b"head", b"123")
