"""One event <-> its SSE text, the tag chain, CRC32C: what tests and tools may ask of the codec."""

def crc(data: bytes, crc: int = 0) -> int:
    """CRC32C of `data`, continued from `crc`."""

def crc_by_table(data: bytes, crc: int = 0) -> int:
    """The same without the CPU's instruction."""

def tag_of(tag: int, id: int, ptype: int, kind: bytes, stored: bytes) -> int:
    """tag(id), continued from tag(id - 1) over an event."""

def first_tag(epoch: int) -> int:
    """tag(0): the start of an epoch's chain."""
