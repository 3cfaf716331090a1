"""Identities: signatures that anybody can check, and files that hold them."""

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import DataError
from discreet.federation.identity import Identity, fingerprint, same_fingerprint, verify

SECRET = bytes(range(32))


def test_the_signature_of_rfc_8032():
    # section 7.1, test 2
    secret = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    public = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    identity = Identity.from_secret(secret)
    assert identity.public == public
    assert identity.sign(b"\x72") == signature
    assert verify(public, b"\x72", signature)


@given(st.binary(max_size=64), st.data())
def test_one_flipped_bit_anywhere_is_noticed(message, data):
    identity = Identity.from_secret(SECRET)
    signature = identity.sign(message)
    assert verify(identity.public, message, signature)
    parts = {"public": identity.public, "message": message, "signature": signature}
    which = data.draw(st.sampled_from([name for name, value in parts.items() if value]))
    bit = data.draw(st.integers(0, 8 * len(parts[which]) - 1))
    changed = bytearray(parts[which])
    changed[bit // 8] ^= 1 << bit % 8
    parts[which] = bytes(changed)
    assert not verify(parts["public"], parts["message"], parts["signature"])


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_nothing_but_false_of_what_is_no_key_and_no_signature(public, signature):
    assert verify(public, b"message", signature) is False


def test_a_new_identity_is_no_other():
    assert Identity.generate() != Identity.generate()


def test_equality_and_text_show_the_public_key_only():
    assert Identity.from_secret(SECRET) == Identity.from_secret(SECRET)
    assert "PrivateKey" not in repr(Identity.from_secret(SECRET))


def test_pem_there_and_back():
    identity = Identity.generate()
    again = Identity.from_pem(identity.to_pem())
    assert again == identity
    assert verify(identity.public, b"x", again.sign(b"x"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not PEM",
        Identity.from_secret(SECRET).to_pem()[:-40],
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        ),
        Identity.from_secret(SECRET).private.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
        ),
    ],
    ids=["empty", "text", "torn", "another curve", "with a password"],
)
def test_what_is_no_identity_is_refused_in_one_line(content):
    with pytest.raises(DataError, match=r"^a\.pem: holds no Ed25519 private key") as caught:
        Identity.from_pem(content, "a.pem")
    assert "\n" not in str(caught.value)


def test_a_fingerprint_is_sha_256_in_groups_of_four():
    digits = hashlib.sha256(b"key").hexdigest()
    text = fingerprint(b"key")
    assert text.replace(":", "") == digits
    assert [len(group) for group in text.split(":")] == [4] * 16


def test_fingerprints_are_compared_however_they_are_written():
    text = fingerprint(b"key")
    assert same_fingerprint(text, text.upper().replace(":", " "))
    assert same_fingerprint(text, text.replace(":", ""))
    assert not same_fingerprint(text, fingerprint(b"other"))
    assert not same_fingerprint(text, text[:-1])
