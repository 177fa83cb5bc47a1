"""The door as the `[http]` settings have it: its rules, its limits, and its certificate."""

import ssl

from trunkline.config import HttpSettings
from trunkline.transports.http_message import HttpLimits
from trunkline.transports.http_rules import HttpRules


def rules_of(http: HttpSettings) -> HttpRules:
    """Return what the settings say about the door."""
    return HttpRules(
        path=http.path,
        sse_path=http.sse_path,
        ws_path=http.ws_path,
        allowed_hosts=frozenset(name.lower() for name in http.allowed_hosts),
        allowed_origins=frozenset(name.lower() for name in http.allowed_origins),
        session_idle=http.session_idle,
        session_life=http.session_life,
        max_sessions=http.max_sessions,
        max_in_flight=http.max_in_flight,
        max_in_flight_per_principal=http.max_in_flight_per_principal,
        keep_alive=http.keep_alive,
    )


def limits_of(http: HttpSettings) -> HttpLimits:
    """Return what the settings say about connections."""
    return HttpLimits(
        head_timeout=http.head_timeout,
        body_timeout=http.body_timeout,
        write_timeout=http.write_timeout,
        max_body=http.max_body,
        max_connections=http.max_connections,
        max_connections_per_address=http.max_connections_per_address,
    )


def tls_of(http: HttpSettings) -> ssl.SSLContext | None:
    """Return what the settings say about TLS; raises ValueError for files that are no good."""
    if http.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(http.certificate, http.key, _no_password)
    except OSError as why:
        reason = getattr(why, "reason", None) or why.strerror
        files = f"{http.certificate!r} and {http.key!r}"
        raise ValueError(f"expected a certificate and its key, got {files}: {reason}") from why
    return context


def _no_password() -> str:
    """Refuse: OpenSSL would ask at the terminal, and wait."""
    raise ValueError("expected a key without a password, got one that has one")
