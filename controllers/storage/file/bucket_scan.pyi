"""The C module beside this file; missing where nothing is compiled."""

def find(bucket: bytes, key: bytes, /) -> int:
    """As `python_scan.find`. Raises ValueError for bytes that are no bucket or no key."""

def scan(bucket: bytes, now_ns: int, /) -> tuple[int, int, int, int]:
    """As `python_scan.scan`. Raises ValueError for bytes that are no bucket, OverflowError for a negative time."""
