"""Asks HTTP servers for byte ranges, over connections that are kept, and does nothing else.

An object store's client spends five to ten times as much of a core on a range of a file as the
standard library, about what decoding an image takes.
"""

from __future__ import annotations

import collections
import functools
import http.client
import ssl
import weakref
from collections.abc import Mapping
from urllib.parse import urlsplit

_SECONDS = 60.0

#: By server; the one used last is taken first.
_Idle = collections.defaultdict[str, collections.deque[http.client.HTTPConnection]]


class Connections:
    """Connections to any number of servers; safe to use from several threads.

    There are as many as there are requests at the same time.
    """

    def __init__(self, certificates: str | None = None) -> None:
        """Begins with no connection.

        Args:
            certificates: file with those of the authorities that may vouch for a server; None
                stands for the system's.
        """
        self._certificates = certificates
        self._idle: _Idle = collections.defaultdict(collections.deque)
        weakref.finalize(self, _close, self._idle)

    def read(self, address: str, headers: Mapping[str, str]) -> bytes | None:
        """Returns a range of a file.

        Args:
            address: http:// or https://, without user and password.
            headers: among them the range.

        Returns:
            the bytes, or None if the server does not answer, or not with the whole range: with
            an error, a redirection, all of the file, or less than it announced.
        """
        scheme, server, path, query, _ = urlsplit(address)
        target = f"{path or '/'}?{query}" if query else path or "/"
        idle = self._idle[f"{scheme}://{server}"]
        while True:
            try:
                connection, kept = idle.pop(), True
            except IndexError:
                connection, kept = self._connect(scheme, server), False
            try:
                connection.request("GET", target, headers=headers)
                answer = connection.getresponse()
                # Of what does not tell its length nobody sees that it was cut off.
                if answer.status == http.client.PARTIAL_CONTENT and answer.length is not None:
                    data = answer.read()
                    idle.append(connection)
                    return data
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # Servers hang up on connections that are not used for a while; but on one that
                # does not answer, the other connections would be waited for as long, too.
                if kept and not isinstance(error, TimeoutError):
                    continue
                return None
            connection.close()
            return None

    def _connect(self, scheme: str, server: str) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(server, timeout=_SECONDS)
        return http.client.HTTPSConnection(server, timeout=_SECONDS, context=self._context)

    @functools.cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._certificates)


def _close(idle: _Idle) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()
