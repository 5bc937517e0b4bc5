"""The libraries that finelu is measured against, each called as its own manual says, in the same run."""


class PeerError(RuntimeError):
    """A peer library is absent, or one of its calls failed; the text names the library and the call."""
