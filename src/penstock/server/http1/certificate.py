"""Read when the certificate of a TLS context expires.

Python's `ssl` tells the dates only of a certificate that the other end has shown and that was verified.  So a client in
memory shakes hands with the context.  It trusts what is in the file of the certificate, and does not look at the time:
the date of a certificate that has expired is the one that matters most.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

_NO_CHECK_TIME: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL; Python's ssl has no name for it
_TURNS: Final = 3
"""How often each end has a turn: TLS 1.3 needs two, TLS 1.2 three."""


def certificate_expires(context: ssl.SSLContext, cert_file: str) -> float | None:
    """When the certificate of `context` expires, in seconds since the epoch.

    None where no client could verify it, for example because it is for clients only, or because `cert_file` has another
    one by now.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(cert_file)
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
        ours = client.wrap_bio(to_client, to_server)
        theirs = context.wrap_bio(to_server, to_client, server_side=True)
        for end in (ours, theirs) * _TURNS:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
        shown = ours.getpeercert()
    except (OSError, ValueError):  # an SSLError is an OSError
        return None
    date = shown.get("notAfter") if shown else None
    return ssl.cert_time_to_seconds(date) if isinstance(date, str) else None
