"""A listener whose limits and certificate are others by now."""

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.transports.faulty import HOST, client_tls, on_both_loops, server_tls
from tests.transports.test_http_connection import Client, Desk, connected, serving
from trunkline.transports.http_listener import HttpListener
from trunkline.transports.http_message import HttpLimits


def another_certificate() -> tuple[str, str]:
    """Return a certificate for 127.0.0.1, made up now, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "another")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return certificate.public_bytes(pem).decode(), key.private_bytes(pem, form, plain).decode()


@on_both_loops
async def test_those_who_connect_see_the_certificate_of_now(tmp_path: Path) -> None:
    listener = HttpListener(desk := Desk())
    await listener.listen(HOST, 0, ssl=server_tls(tmp_path))
    port = listener.addresses[0][1]
    reader, writer = await asyncio.open_connection(HOST, port, ssl=client_tls())
    before = Client(reader, writer)
    for file, text in zip(("c", "k"), another_certificate(), strict=True):
        (tmp_path / file).write_text(text)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "c", tmp_path / "k")
    listener.adopt(HttpLimits(), tls)
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection(HOST, port, ssl=client_tls())
    trusting = ssl.create_default_context(cafile=str(tmp_path / "c"))
    after = Client(*await asyncio.open_connection(HOST, port, ssl=trusting))
    listener.adopt(HttpLimits())  # other limits, and the same certificate
    for client in (before, after):  # who was there stays
        client.get()
        (await desk.next()).respond(200, (), b"hi")
        assert (await client.answer()).body == b"hi"
        client.writer.close()
    await listener.aclose(1)


async def test_those_who_connect_have_the_limits_of_now() -> None:
    async with serving(desk := Desk()) as listener, connected(listener) as before:
        listener.adopt(HttpLimits(max_body=10, max_connections=2))
        async with connected(listener) as after, connected(listener) as one_too_many:
            for client in (before, after, one_too_many):
                client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n12345678901")
            (await desk.next()).respond(200, (), b"hi")
            assert (await before.answer()).status == 200
            assert (await after.answer()).status == 413
            assert (await one_too_many.answer()).status == 503
