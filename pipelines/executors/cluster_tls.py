"""TLS to the API of a cluster, by the CA that the cluster itself has made."""

from __future__ import annotations

import ssl
from pathlib import Path


def cluster_tls_context(ca_file: str | Path) -> ssl.SSLContext:
    """Trust this CA alone, whatever extensions it has: since version 3.13 Python refuses one without a key usage, as
    clusters of managed services have it. Everything else of a certificate is checked."""
    context = ssl.create_default_context(cafile=str(ca_file))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
