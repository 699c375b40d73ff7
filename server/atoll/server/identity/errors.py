"""Errors of identity.

::

    IdentityError                     something about keys, certificates or tokens is wrong
    ├── AuthorityError                this server's own certificate authority cannot be used (the operator's to mend)
    ├── CertificateRequestError       a certificate request that is not acceptable (the caller's fault)
    ├── PeerError                     a peer certificate that names no peer of this federation (the caller's fault)
    ├── CredentialError               an operator credential file that cannot be read
    └── TokenError                    a join token that does not admit (the caller's fault)
        ├── TokenUnknownError         no such token, or the secret is wrong
        ├── TokenExpiredError
        ├── TokenUsedError
        └── TokenScopeError           the token is for another organisation or kind
"""


class IdentityError(Exception):
    """Something about keys, certificates or tokens is wrong."""


class AuthorityError(IdentityError):
    """This server's own certificate authority cannot be used; the message says how to mend it."""


class CertificateRequestError(IdentityError):
    """A certificate request that is not acceptable."""


class PeerError(IdentityError):
    """A peer certificate that names no peer of this federation."""


class CredentialError(IdentityError):
    """An operator credential file that cannot be read or written."""


class TokenError(IdentityError):
    """A join token that does not admit its holder."""


class TokenUnknownError(TokenError):
    """No such token, or the secret is wrong: the two are not told apart to the caller."""


class TokenExpiredError(TokenError):
    """The token's time is over."""


class TokenUsedError(TokenError):
    """The token has been spent."""


class TokenScopeError(TokenError):
    """The token is for another organisation or another kind of participant."""
