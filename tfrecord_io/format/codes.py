"""The codes that stand for names in an anonymous dataset."""

from __future__ import annotations

import hmac


def code_of(secret: bytes, kind: str, name: str) -> str:
    """Returns the code of a name, which has another one in each kind, such as image and patient.

    It is half of the HMAC-SHA256 of both with a secret (RFC 2104), in hexadecimal.
    """
    message = f"{kind}\0{name}".encode("utf-8", "surrogatepass")
    return hmac.digest(secret, message, "sha256").hex()[:32]
