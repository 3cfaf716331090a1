"""Certificates: a TLS connection with them works, one without does not; and Flower reads its nodes' keys."""

import datetime
import ipaddress
import socket
import ssl
import stat
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from discreet.errors import ConfigError, DataError
from discreet.federation import certificates, files
from discreet.federation.certificates import (
    expires,
    make_authority,
    make_certificates,
    make_server_certificate,
    node_keys,
)

HOSTS = ["localhost", "127.0.0.1", "::1", "fl.hospital-a.example"]


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def greeting(folder, authority, host):
    """What a client hears that trusts `authority`, from a server with the certificate in `folder`."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "server.pem", folder / "server.key")
    asking = ssl.create_default_context(cafile=str(authority))
    asking.verify_flags |= ssl.VERIFY_X509_STRICT  # what newer Pythons do by default
    here, there = socket.socketpair()
    here.settimeout(10)
    there.settimeout(10)

    def serve():
        try:
            with serving.wrap_socket(there, server_side=True) as secured:
                secured.sendall(b"hello")
        except (ssl.SSLError, OSError):
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with asking.wrap_socket(here, server_hostname=host) as secured:
            return secured.recv(5)
    finally:
        here.close()
        thread.join()


def test_a_connection_over_tls(tmp_path):
    make_certificates(tmp_path / "certs", HOSTS, [])
    for host in HOSTS:
        assert greeting(tmp_path / "certs", tmp_path / "certs" / "ca.pem", host) == b"hello"
    with pytest.raises(ssl.SSLCertVerificationError, match=r"[Hh]ostname mismatch"):
        greeting(tmp_path / "certs", tmp_path / "certs" / "ca.pem", "evil.example")


def test_another_authority_is_not_believed(tmp_path):
    make_certificates(tmp_path / "a", ["localhost"], [])
    make_certificates(tmp_path / "b", ["localhost"], [])
    with pytest.raises(ssl.SSLCertVerificationError):
        greeting(tmp_path / "a", tmp_path / "b" / "ca.pem", "localhost")


def test_a_server_cannot_sign_for_others(tmp_path):
    make_certificates(tmp_path, ["localhost"], [])
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    assert server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert server.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is False
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_every_file_is_there_and_secrets_are_their_owners(tmp_path):
    written = make_certificates(tmp_path / "certs", ["localhost"], ["hospital a", "b"])
    expected = [
        "ca.key", "ca.pem", "nodes/b.key", "nodes/b.pub", "nodes/hospital a.key", "nodes/hospital a.pub",
        "server.key", "server.pem",
    ]  # fmt: skip
    assert names(tmp_path / "certs") == expected
    assert sorted(written) == sorted(tmp_path / "certs" / name for name in expected)
    for path in written:
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path.suffix == ".key" else 0o644)
    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700


def test_node_keys_are_what_flower_takes(tmp_path):
    keys = node_keys(tmp_path, "a.b")
    assert (keys.private.name, keys.public.name) == ("a.b.key", "a.b.pub")
    private = load_ssh_private_key(keys.private.read_bytes(), None)
    public = load_ssh_public_key(keys.public.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(public, ec.EllipticCurvePublicKey)
    assert isinstance(public.curve, ec.SECP384R1)
    assert private.public_key() == public


def test_flower_reads_the_public_half(tmp_path):
    register = pytest.importorskip("flwr.cli.supernode.register", reason="needs Flower: discreet[flower]")
    assert b"BEGIN PUBLIC KEY" in register.try_load_public_key(node_keys(tmp_path, "a").public)


@pytest.mark.parametrize("there", ["ca.pem", "server.key", "nodes/b.pub"])
def test_nothing_is_ever_overwritten(tmp_path, there):
    (tmp_path / "nodes").mkdir()
    (tmp_path / there).write_text("mine")
    with pytest.raises(DataError, match=f"{there}: is there already"):
        make_certificates(tmp_path, ["localhost"], ["a", "b"])
    assert names(tmp_path) == [there]
    assert (tmp_path / there).read_text() == "mine"


def test_a_link_to_nowhere_is_not_followed(tmp_path):
    (tmp_path / "ca.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is there already"):
        make_authority(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_what_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    real = files.os.open

    def failing(path, flags, mode=0o777):
        if str(path).endswith("server.key"):
            raise OSError(28, "No space left on device")
        return real(path, flags, mode)

    monkeypatch.setattr(files.os, "open", failing)
    with pytest.raises(DataError, match=r"server\.key: cannot be written: No space left"):
        make_certificates(tmp_path / "certs", ["localhost"], ["a"])
    assert names(tmp_path) == []


def test_a_new_server_certificate_from_an_authority_kept_elsewhere(tmp_path):
    authority, _ = make_authority(tmp_path / "safe")
    make_server_certificate(tmp_path / "one", ["localhost"], authority=tmp_path / "safe")
    make_server_certificate(tmp_path / "two", ["localhost"], authority=tmp_path / "safe", days=3)
    for folder in ("one", "two"):
        assert greeting(tmp_path / folder, authority, "localhost") == b"hello"
    assert names(tmp_path / "two") == ["server.key", "server.pem"]


def test_when_it_ends(tmp_path):
    make_certificates(tmp_path, ["localhost"], [], days=30)
    left = expires((tmp_path / "server.pem").read_bytes()) - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=29, hours=23) < left < datetime.timedelta(days=30, minutes=1)
    with pytest.raises(DataError, match="no certificate"):
        expires(b"text")


def test_clocks_may_differ_a_little(tmp_path):
    make_authority(tmp_path)
    begins = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes()).not_valid_before_utc
    assert begins < datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)


@pytest.mark.parametrize(
    "host", ["", "a b", "https://a", "a:9092", "a..b", "-a", "a-", "1.2.3", "300.1.1.1", "é", "*.a", "a/b", "a" * 64]
)  # fmt: skip
def test_what_is_no_host_is_refused(tmp_path, host):
    with pytest.raises(ConfigError, match="expected a host's name or address"):
        make_certificates(tmp_path / "certs", [host], [])
    assert names(tmp_path) == []


def test_hosts_stand_in_the_certificate_each_once(tmp_path):
    make_certificates(tmp_path, ["fl.example.org", "10.0.0.1", "fl.example.org"], [])
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    found = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(found) == [
        x509.DNSName("fl.example.org"),
        x509.IPAddress(ipaddress.ip_address("10.0.0.1")),
        # by these the server's own processes reach it
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]


@pytest.mark.parametrize(
    ("hosts", "sites", "days", "complaint"),
    [
        ([], [], 1, "expected the name or address"),
        (["a"], [], 0, "days = 0"),
        (["a"], [], 4000, "days = 4000"),
        (["a"], ["../up"], 1, "name '../up'"),
        (["a"], ["b", "b"], 1, "name of two sites"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, hosts, sites, days, complaint):
    with pytest.raises((ConfigError, DataError), match=complaint):
        make_certificates(tmp_path / "certs", hosts, sites, days=days)
    assert not (tmp_path / "certs").exists()


def test_an_authority_that_others_can_read_signs_nothing(tmp_path):
    make_authority(tmp_path)
    (tmp_path / "ca.key").chmod(0o640)
    with pytest.raises(DataError, match=f"chmod 600 {tmp_path}/ca.key"):
        make_server_certificate(tmp_path, ["localhost"])


def test_an_authority_that_is_none_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"ca\.key: cannot be read"):
        make_server_certificate(tmp_path / "a", ["localhost"], authority=tmp_path)
    make_authority(tmp_path / "one")
    make_authority(tmp_path / "two")
    (tmp_path / "one" / "ca.pem").write_bytes((tmp_path / "two" / "ca.pem").read_bytes())
    with pytest.raises(DataError, match="is not the key of"):
        make_server_certificate(tmp_path / "one", ["localhost"])
    (tmp_path / "one" / "ca.pem").write_text("x")
    with pytest.raises(DataError, match="holds no authority"):
        make_server_certificate(tmp_path / "one", ["localhost"])


def test_two_authorities_have_different_keys(tmp_path):
    found = {make_authority(tmp_path / name)[1].read_bytes() for name in ("a", "b")}
    assert len(found) == 2
    assert certificates.CA_DAYS >= 365
