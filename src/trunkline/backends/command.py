"""Servers with a `command`: MCP over stdin and stdout of a program that the gateway starts."""

from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta, field

from trunkline.backends.kind import BackendSettings, ConnectContext, ProtocolKey
from trunkline.documents.formats import EnvName, IdleDuration, NonBlankText
from trunkline.gateway.backend import Backend, BackendOwner, ConnectBackend
from trunkline.printable import PLAIN_VARIABLES, secrets_in_arguments
from trunkline.stdio.sandbox import SandboxSettings


class CommandSettings(BackendSettings, frozen=True, kw_only=True):
    """The keys of a server that is a program; `env` includes the variables of `env_file`."""

    PATH_KEYS: ClassVar = ("cwd", "env_file")

    command: Annotated[
        NonBlankText,
        Meta(description="The program to start; it speaks MCP on stdin and stdout."),
    ]
    args: Annotated[tuple[str, ...], Meta(description="The arguments of the command.")] = ()
    env: Annotated[
        dict[EnvName, str],
        Meta(description="Environment variables of the command; few others are inherited."),
    ] = field(default_factory=dict[str, str])
    env_file: Annotated[
        NonBlankText | None,
        Meta(description="A file of KEY=VALUE lines; `env` overrides it. Default: none."),
    ] = None
    cwd: Annotated[
        NonBlankText | None,
        Meta(
            description=(
                "The working directory of the command. Default: that of the configuration file."
            )
        ),
    ] = None
    sandbox: Annotated[SandboxSettings | None, Meta(description="What the command may use.")] = None
    protocol: ProtocolKey = "auto"
    idle_stop: Annotated[
        IdleDuration | None,
        Meta(
            description=(
                "After how long without calls its processes end, or off. "
                "Default: gateway.idle_stop."
            )
        ),
    ] = None

    def connector(self, context: ConnectContext) -> ConnectBackend:
        """Return a function that starts the program and connects to it."""
        folder, command = Path(self.cwd) if self.cwd else context.folder, [self.command, *self.args]
        era_cache = context.era_cache(*command, str(folder))
        if self.sandbox and self.cwd is None:
            folder = self.sandbox.default_folder(folder)
        start = partial(context.start_child, command, self.env, folder, self.sandbox)

        async def connect(owner: BackendOwner) -> Backend:
            from trunkline.backends.connect import StdioConnector  # noqa: PLC0415

            identity = context.client_identity(owner, has_later_sessions=True)
            connector = StdioConnector(start, self.protocol, era_cache, context.limits)
            return await connector.connect(identity)

        return connect

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values of its variables, and arguments that look like secrets."""
        variables = (value for name, value in self.env.items() if name not in PLAIN_VARIABLES)
        return (*variables, *secrets_in_arguments(self.args))

    @property
    def span_attributes(self) -> dict[str, str | int]:
        """A pipe."""
        return {"network.transport": "pipe"}
