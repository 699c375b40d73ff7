"""Errors of the wire contract.

::

    WireError                 something breaks the contract; the message names the value
    ├── LayoutError           an invalid tensor layout
    ├── ChunkError            a chunk, range or payload that breaks the framing rules
    ├── CoverageError         chunks that overlap, leave holes or exceed the layout
    ├── DigestError           bytes that do not match their digest
    ├── JoinTokenError        a join token that is truncated, mistyped or of another version
    └── SafetensorsError      a safetensors file that is damaged or has tensors that do not travel
"""


class WireError(ValueError):
    """Something breaks the wire contract; the message names the value and what is allowed."""


class LayoutError(WireError):
    """An invalid tensor layout."""


class ChunkError(WireError):
    """A chunk, range or payload that breaks the framing rules."""


class CoverageError(WireError):
    """Chunks that overlap, leave holes, or go beyond the layout."""


class DigestError(WireError):
    """Bytes that do not match the digest that they were sent or stored under."""


class JoinTokenError(WireError):
    """A join token that is truncated, mistyped or of another version."""


class SafetensorsError(WireError):
    """A safetensors file that is truncated, inconsistent, or has tensors of types that are not sent."""
