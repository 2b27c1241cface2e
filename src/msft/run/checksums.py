"""Checksums of log lines: each line ends with the CRC of every byte of the file before it.

A changed digit, a line that was lost, added or moved: the chain breaks at that line. Lines of
earlier versions have none; they are valid only before the first line that has one.
"""

import re
import zlib

_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n')


class Chain:
    """The CRC of the bytes so far, and whether a line had a checksum."""

    def __init__(self) -> None:
        self._value = 0
        self._sealed = False

    def seal(self, line: bytes) -> bytes:
        """A line, which ends in a brace and a line end, with its checksum as the last key."""
        body = line.removesuffix(b"}\n")
        sealed = b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body, self._value))
        self._take(sealed)
        return sealed

    def fault(self, line: bytes) -> str | None:
        """What is wrong with the next line of a file, or None: then the chain goes on behind it."""
        seal = _SEAL.search(line, max(0, len(line) - 19))
        if seal is None:
            if self._sealed:
                return "it has no checksum, but a line before it has one"
        elif int(seal[1], 16) != zlib.crc32(line[: seal.start()], self._value):
            return "its checksum does not fit the bytes before it"
        self._sealed = self._sealed or seal is not None
        self._take(line)
        return None

    def _take(self, line: bytes) -> None:
        self._value = zlib.crc32(line, self._value)
