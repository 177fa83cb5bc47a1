"""The tables `[metrics]`, `[traces]` and `[log]`, as frozen values.

Refuses to read anything: what they refer to is filled in by `observe_table`.

Rule upheld here: printing them never shows a token, or what a header was given.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

_ADDRESS = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"
_FIELD = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"  # a field name as RFC 9110, 5.6.2, has it


class MetricsTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where metrics are to be read; nowhere unless `listen` or `path` is set."""

    listen: Annotated[
        Annotated[
            str,
            Meta(
                pattern=_ADDRESS,
                extra={"expected": 'a host and a port, such as "127.0.0.1:9201"'},
            ),
        ]
        | None,
        Meta(description="An address of their own, with health beside them; else that of [http]."),
    ] = None
    path: Annotated[
        Annotated[
            str,
            Meta(pattern="^/[A-Za-z0-9._~/-]*$", extra={"expected": 'a path that begins with "/"'}),
        ]
        | None,
        Meta(description="Where they are at that address; /metrics if only `listen` is set."),
    ] = None
    token_env: Annotated[
        Annotated[
            str,
            Meta(
                pattern="^[A-Za-z_][A-Za-z0-9_]*$",
                extra={"expected": "the name of a variable, not its value"},
            ),
        ]
        | None,
        Meta(description="The variable whose value must come as a bearer token."),
    ] = None
    max_series: Annotated[
        int, Meta(ge=10, le=100_000, description="Series of calls; what comes later is `other`.")
    ] = 5000


class MetricsSettings(MetricsTable, frozen=True, kw_only=True):
    """Where metrics are to be read, and by whom."""

    token: str | None = None

    @property
    def place(self) -> str | None:
        """The path at which they are, None if they are nowhere."""
        return self.path or (None if self.listen is None else "/metrics")

    def __repr__(self) -> str:
        return f"MetricsSettings({self.listen!r}, {self.place!r}, …)"


class TracesSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where traces go; nowhere unless `endpoint` is set."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        "url": 'write "endpoint"',
        "ratio": 'write "sample"',
        "sample_rate": 'write "sample"',
    }

    endpoint: Annotated[
        Annotated[
            str, Meta(pattern=r"^\s*\S[\s\S]*$", extra={"expected": "text that is not blank"})
        ]
        | None,
        Meta(description="Where an OTLP collector takes them over HTTP; /v1/traces unless it says"),
    ] = None
    sample: Annotated[
        Annotated[float, Meta(ge=0, le=1)],
        Meta(description="The share of calls that begin a trace, where the client has none."),
    ] = 0.1
    service_name: Annotated[
        str,
        Meta(
            pattern=r"^\s*\S[\s\S]*$",
            description="How the gateway is called in traces: `service.name`.",
            extra={"expected": "text that is not blank"},
        ),
    ] = "trunkline"
    headers: Annotated[
        dict[
            Annotated[str, Meta(pattern=_FIELD, extra={"expected": "the name of an HTTP header"})],
            str,
        ],
        Meta(description="Headers to send to the collector; `${VAR}` stands for a variable."),
    ] = field(default_factory=dict[str, str])

    def __repr__(self) -> str:
        return f"TracesSettings({self.sample!r}, {self.service_name!r}, …)"


class LogSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written to stderr."""

    format: Annotated[
        Literal["auto", "json", "text"],
        Meta(description="For programs, for people, or whichever reads it."),
    ] = "auto"
    level: Annotated[
        Literal["debug", "info", "warning", "error", "off"] | None,
        Meta(description="How grave it must be; info over HTTP and warning over stdio unless set."),
    ] = None
