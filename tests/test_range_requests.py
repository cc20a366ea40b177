import contextlib
import datetime
import ipaddress
import socketserver
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipelines import range_requests
from pipelines.range_requests import Connections

CONTENT = bytes(range(256)) * 64


class _Handler(socketserver.StreamRequestHandler):
    """Answers as the path says; one connection may ask many times."""

    def setup(self):
        self.request.settimeout(30)
        super().setup()

    def handle(self):
        self.server.connections.append(threading.get_ident())
        while request := self.rfile.readline():
            path = request.split()[1].decode()
            headers = {}
            while line := self.rfile.readline().strip():
                name, _, value = line.decode().partition(": ")
                headers[name.lower()] = value
            self.server.paths.append(path)
            first, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
            body = CONTENT[first : last + 1]
            head = f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(body)}\r\n\r\n"
            if path == "/cut-off":
                body = body[:-1]
            elif path == "/whole-file":
                head, body = f"HTTP/1.1 200 OK\r\nContent-Length: {1 << 40}\r\n\r\n", b"x" * 100
            elif path == "/no-length":
                head = "HTTP/1.1 206 Partial Content\r\n\r\n"
            elif path == "/moved":
                head, body = "HTTP/1.1 307 Moved\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", b""
            elif path == "/nonsense":
                head = "SSH-2.0-nothing\r\n\r\n"
            elif path == "/silent":
                self.server.silent.wait(30)
            self.wfile.write(head.encode() + body)
            if path in ("/cut-off", "/no-length", "/hang-up"):
                return


@contextlib.contextmanager
def served(context=None):
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def get_request(self):
            connection, address = super().get_request()
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            return connection, address

        def handle_error(self, request, client_address):
            pass

    with Server(("127.0.0.1", 0), _Handler) as server:
        server.connections, server.paths = [], []
        server.silent = threading.Event()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.silent.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def server():
    with served() as server:
        yield server


def address(server, path="/", scheme="http"):
    return f"{scheme}://127.0.0.1:{server.server_address[1]}{path}"


def wanted(first, last):
    return {"Range": f"bytes={first}-{last}"}


def test_a_range_is_read_and_the_connection_kept(server):
    connections = Connections()
    for first in (0, 7, 4000):
        found = connections.read(address(server), wanted(first, first + 9))
        assert found == CONTENT[first : first + 10]
    assert len(server.connections) == 1


def test_a_signed_address_is_asked_for_word_for_word(server):
    Connections().read(address(server, "/a%20key?X-Sig=a%2Fb&y=1"), wanted(0, 1))
    assert server.paths == ["/a%20key?X-Sig=a%2Fb&y=1"]


def test_a_connection_that_the_server_closed_is_opened_again(server):
    connections = Connections()
    for _ in range(3):
        assert connections.read(address(server, "/hang-up"), wanted(0, 9)) == CONTENT[:10]
    assert len(server.connections) == 3


@pytest.mark.parametrize("path", ["/cut-off", "/whole-file", "/no-length", "/moved", "/nonsense"])
def test_what_is_not_a_whole_range_is_nothing_and_spoils_no_connection(server, path):
    connections = Connections()
    assert connections.read(address(server, path), wanted(0, 99)) is None
    assert connections.read(address(server), wanted(0, 99)) == CONTENT[:100]


def test_a_server_that_is_not_there_is_nothing():
    with served() as server:
        gone = address(server)
    assert Connections().read(gone, wanted(0, 9)) is None


def test_threads_get_each_its_own_bytes_over_no_more_connections_than_threads(server):
    connections = Connections()

    def read(first):
        return connections.read(address(server), wanted(first, first + 99))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, range(400)))
    assert found == [CONTENT[first : first + 100] for first in range(400)]
    assert len(server.connections) <= 8


def test_a_server_that_does_not_answer_is_waited_for_once(server, monkeypatch):
    monkeypatch.setattr(range_requests, "_SECONDS", 2.0)
    connections = Connections()
    together = threading.Barrier(3)

    def read(_):
        together.wait(30)
        return connections.read(address(server), wanted(0, 9))

    while len(server.connections) < 2:
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(read, range(3))) == [CONTENT[:10]] * 3
    server.paths.clear()
    assert connections.read(address(server, "/silent"), wanted(0, 9)) is None
    assert server.paths == ["/silent"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Files with a certificate for 127.0.0.1 that vouches for itself, and with its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a store")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "cert.pem", folder / "key.pem"


def test_only_a_server_whom_an_authority_vouches_for_is_read(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with served(context) as server:
        url = address(server, scheme="https")
        assert Connections().read(url, wanted(0, 9)) is None
        assert Connections(str(certificate[0])).read(url, wanted(0, 9)) == CONTENT[:10]
