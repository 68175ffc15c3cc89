"""A parser of redis-py that keeps a page of entries as bytes.

RESP doesn't announce the size of a reply. So the source sends ECHO with a random END_OF_PAGE after the
command: the page ends before the reply to ECHO.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np
from redis.connection import DefaultParser
from redis.exceptions import ConnectionError as LinkError

from korvet.spark.records.page import Page

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Random, so that no value can contain it.
END_OF_PAGE = secrets.token_bytes(16)
_END = b"$%d\r\n%b\r\n" % (len(END_OF_PAGE), END_OF_PAGE)
_MIN_BUFFER_BYTES = 1 << 16


class PageParser(DefaultParser):  # type: ignore[misc, valid-type]  # redis-py selects it at import
    """A connection's parser that returns a reply as a Page if `page_is_next`."""

    def __init__(self, socket_read_size: int) -> None:
        super().__init__(socket_read_size)
        self.page_is_next = False
        """Whether the next reply is entries, followed by the reply to ECHO."""
        self._buffer_bytes = _MIN_BUFFER_BYTES

    def read_response(self, *arguments: Any, **named: Any) -> Any:
        """Return the next reply; a Page if `page_is_next` and the reply is not an error."""
        if not self.page_is_next:
            return super().read_response(*arguments, **named)
        self.page_is_next = False
        data, size = self._read_page()
        if data[0] == ord("*"):
            return Page(data, size - len(_END))
        self._reader.feed(data[:size].tobytes())
        refusal = super().read_response(*arguments, **named)
        super().read_response(*arguments, **named)
        return refusal

    def _read_page(self) -> tuple[NDArray[np.uint8], int]:
        """A buffer with the page and the reply to ECHO, and the number of bytes in it."""
        data, size = np.empty(self._buffer_bytes, dtype=np.uint8), 0
        while data[max(0, size - len(_END)) : size].tobytes() != _END:
            if size == len(data):
                larger = np.empty(2 * len(data), dtype=np.uint8)
                larger[:size] = data[:size]
                data = larger
            received = self._sock.recv_into(data.data[size:])
            if received == 0:
                raise LinkError("the server closed the connection")
            size += received
        self._buffer_bytes = max(_MIN_BUFFER_BYTES, size + size // 4)
        return data, size


def read_page(connection: Any) -> Any:
    """Return the next reply of a redis-py connection as a Page. Raises what its read_response raises."""
    connection._parser.page_is_next = True  # redis-py has no public access to the parser
    return connection.read_response(disable_decoding=True)
