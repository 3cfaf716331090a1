"""What a deployment needs for TLS and for Flower's authentication of nodes, made by the operator of the server.

| file | what | who has it |
|---|---|---|
| ``ca.pem`` | certificate of the authority | everybody |
| ``ca.key`` | its private key | the operator, off the server |
| ``server.pem``, ``server.key`` | the server's certificate and private key | the server |
| ``nodes/NAME.key`` | a site's key for Flower, in OpenSSH's format | that site, and nobody else |
| ``nodes/NAME.pub`` | its public half | the operator, who registers it |

Private keys can be read by their owner alone, and no file is ever overwritten. A site that would rather not be sent a
key makes one of its own by `node_keys`, and sends the public half. None of these keys is an `Identity`: they keep
strangers from the connection, and have no part in what the sites sign.

Keys are elliptic: P-256 for TLS, P-384 for Flower's nodes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from discreet.errors import ConfigError, DataError
from discreet.federation.files import EVERYBODY, OWNER, NewFile, check_private, make_folder, read, write_new
from discreet.federation.roster import check_name

CA_CERTIFICATE, CA_KEY = "ca.pem", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.pem", "server.key"
NODES = "nodes"

CA_DAYS, SERVER_DAYS = 3650, 397
"""For how long certificates are valid, if nothing else is asked."""

LOOPBACK = ("localhost", "127.0.0.1")
"""In every server's certificate: the processes that a SuperLink starts on its own machine reach it so."""

_SKEW = timedelta(minutes=10)
"""Certificates are valid from a little before they are made: clocks differ."""

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


@dataclass(frozen=True)
class NodeKeys:
    """A site's key pair for Flower's authentication of nodes.

    Attributes:
        private: what its SuperNode is given.
        public: what the operator registers with the SuperLink.
    """

    private: Path
    public: Path


def make_certificates(
    folder: Path, hosts: Sequence[str], sites: Sequence[str], *, days: int = SERVER_DAYS
) -> tuple[Path, ...]:
    """Make an authority, the server's certificate, and a node key for each site.

    Args:
        folder: where; it is made if it is absent.
        hosts: names and addresses by which nodes reach the server; `LOOPBACK` is added.
        sites: the sites' names.
        days: for how long the server's certificate is valid.

    Returns:
        The files that were written.

    Raises:
        ConfigError: a host is none, or `days` is out of range.
        DataError: a file is there already, or cannot be written; nothing is left of what this call has written.
    """
    now = datetime.now(UTC)
    authority, key = _authority(now, CA_DAYS)
    files = {
        folder / CA_CERTIFICATE: NewFile(_pem(authority), EVERYBODY),
        folder / CA_KEY: NewFile(_private(key)),
        **_server(folder, authority, key, hosts, days, now),
    }
    nodes = _nodes(folder / NODES, sites)
    make_folder(folder)
    if nodes:
        make_folder(folder / NODES)
    return write_new(files | nodes)


def make_authority(folder: Path, *, days: int = CA_DAYS) -> tuple[Path, Path]:
    """Make an authority alone.

    Returns:
        Its certificate, and its private key.

    Raises:
        ConfigError: `days` is out of range.
        DataError: a file is there already, or cannot be written.
    """
    certificate, key = _authority(datetime.now(UTC), days)
    make_folder(folder)
    files = {
        folder / CA_CERTIFICATE: NewFile(_pem(certificate), EVERYBODY),
        folder / CA_KEY: NewFile(_private(key)),
    }
    write_new(files)
    return folder / CA_CERTIFICATE, folder / CA_KEY


def make_server_certificate(
    folder: Path, hosts: Sequence[str], *, authority: Path | None = None, days: int = SERVER_DAYS
) -> tuple[Path, Path]:
    """Make the server's certificate, signed by an authority that is there: the first, or one after another.

    Args:
        folder: where it goes.
        hosts: names and addresses by which nodes reach the server; `LOOPBACK` is added.
        authority: folder of the authority; None for the same.
        days: for how long it is valid.

    Returns:
        The certificate, and its private key.

    Raises:
        ConfigError: a host is none, or `days` is out of range.
        DataError: there is no authority, its key is open to others, or a file cannot be written or is there already.
    """
    home = folder if authority is None else authority
    check_private(home / CA_KEY)
    try:
        certificate = x509.load_pem_x509_certificate(read(home / CA_CERTIFICATE))
        key = load_pem_private_key(read(home / CA_KEY), password=None)
    except (ValueError, TypeError):
        raise DataError(home, f"holds no authority: {CA_CERTIFICATE} or {CA_KEY} is damaged") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise DataError(home / CA_KEY, f"is not the key of {CA_CERTIFICATE} beside it")
    files = _server(folder, certificate, key, hosts, days, datetime.now(UTC))
    make_folder(folder)
    write_new(files)
    return folder / SERVER_CERTIFICATE, folder / SERVER_KEY


def node_keys(folder: Path, name: str) -> NodeKeys:
    """Make one site's key pair for Flower.

    Args:
        folder: where it goes.
        name: the site's.

    Raises:
        DataError: the name is none, or a file is there already, or cannot be written.
    """
    files = _nodes(folder, [name])
    make_folder(folder)
    private, public = write_new(files)
    return NodeKeys(private, public)


def expires(certificate: bytes) -> datetime:
    """When a certificate, as PEM, ends to be valid.

    Raises:
        DataError: it is no certificate.
    """
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError:
        raise DataError("certificate", "is no certificate in PEM") from None


def _authority(now: datetime, days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "discreet federation authority")])
    builder = (
        _builder(name, name, key, now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    return builder.sign(key, SHA256()), key


def _server(
    folder: Path,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int,
    now: datetime,
) -> dict[Path, NewFile]:
    if not hosts:
        raise ConfigError("server", "nothing", "the name or address by which nodes reach the server")
    names = [_alternative(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "discreet federation server")])
    builder = (
        _builder(subject, authority.subject, key, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
    )
    certificate = builder.sign(authority_key, SHA256())
    return {
        folder / SERVER_CERTIFICATE: NewFile(_pem(certificate), EVERYBODY),
        folder / SERVER_KEY: NewFile(_private(key)),
    }


def _nodes(folder: Path, names: Sequence[str]) -> dict[Path, NewFile]:
    files: dict[Path, NewFile] = {}
    for name in names:
        key = ec.generate_private_key(ec.SECP384R1())
        stem = folder / check_name(name, "site")
        private, public = stem.with_name(f"{stem.name}.key"), stem.with_name(f"{stem.name}.pub")
        if private in files:
            raise DataError(name, "is the name of two sites: expected one of its own for each")
        files[private] = NewFile(
            key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), OWNER
        )
        line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        files[public] = NewFile(line + b"\n", EVERYBODY)
    return files


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    if not 1 <= days <= CA_DAYS:
        raise ConfigError("days", days, f"from 1 to {CA_DAYS}")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    """A host as a certificate names it: an address, or a name in letters that DNS knows."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.removesuffix(".").split(".")
    numeric = labels[-1].isdigit()
    if len(host) > 253 or numeric or not all(_LABEL.fullmatch(label) for label in labels):
        raise ConfigError("server", host, "a host's name or address, without port or protocol")
    return x509.DNSName(host.removesuffix("."))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
