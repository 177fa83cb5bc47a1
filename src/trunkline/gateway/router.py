"""Finds the upstream of the feature that a request names, and passes the request on.

    request, params ──> catalogue ──> Route ──> params with the native name ──> Upstream.call

Routing is the same for both protocol eras. A call of `call_tool` is unwrapped. Only `name` and
`arguments` change; progress token, envelope and request id stay.

    {"name": "search__call_tool", "arguments": {"name": "fs__read", "arguments": {…}}, "_meta": …}
    ──unwrap──>  {"name": "fs__read", "arguments": {…}, "_meta": …}

Invariants:
1. A request goes to the upstream whose feature it names, under the native name.
2. All other bytes of the params are forwarded unchanged.
3. An entry that the caller may not see is unknown to it, before any other check.
4. While upstreams are starting, a name is unknown after `first_list_timeout` at the earliest. A
   call to an upstream that is starting waits for it, and is then routed and checked again.
5. A call through `call_tool` passes the checks of both tools. `call_tool` cannot call itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient
from trunkline.gateway.decision_cache import CallerCache, CallerRules, Route
from trunkline.gateway.pipeline import Decision, Deferred, Pipeline
from trunkline.gateway.registry import Registry
from trunkline.gateway.upstream import Upstream
from trunkline.jsonrpc import (
    INVALID_PARAMS,
    UNSET,
    PendingResult,
    Raw,
    Request,
    RpcError,
    from_raw,
    read_members,
    to_raw,
)
from trunkline.jsonrpc.raw_json import first_byte
from trunkline.mcp.compat import RESOURCE_NOT_FOUND
from trunkline.mcp.features import KIND_NAMES, FeatureKind
from trunkline.mcp.identity import Caller
from trunkline.mcp.methods import (
    BY_NAME,
    BY_REF,
    CLIENT_REQUESTS,
    Method,
    is_defined,
    undefined_method,
)
from trunkline.mcp.params import Params
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.naming import NAME_SEPARATOR, find_ambiguity

_OPEN_BRACE = ord("{")
_WRAPPER_KEYS = frozenset(("name", "arguments"))


def unwrap_call(params: Params) -> tuple[str, Raw]:
    """Return the inner name and arguments of a `call_tool`; raises Invalid params."""
    raw = params.get("arguments") or Raw(b"{}")
    inner = Params(raw)
    name = inner.require_text("name")
    unexpected = read_members(raw).keys() - _WRAPPER_KEYS
    if unexpected:
        field = min(unexpected)
        message = f"unexpected {field!r}; put the tool's own arguments into 'arguments'"
        raise RpcError.invalid_params(message, {"field": field})
    arguments = inner.get("arguments")
    if arguments is None or bytes(arguments) == b"null":
        return name, Raw(b"{}")
    if first_byte(arguments) != _OPEN_BRACE:
        raise RpcError.invalid_params("expected an object as 'arguments'", {"field": "arguments"})
    return name, arguments


_EMPTY_DEFINITION = Raw(b"{}")
"""Stands for the definition of an entry that no upstream has listed."""

EntryCheck = Callable[[CatalogEntry, Params], None]
"""A last check of a routed call before it is sent; raises RpcError."""


class Router:
    """Routes requests to the upstreams that answer them."""

    def __init__(self, registry: Registry, pipeline: Pipeline | None = None) -> None:
        self.pipeline = pipeline or Pipeline(decisions=registry.decisions)
        self.pipeline.refresh_route = self._refresh_route
        self.registry = registry
        self._decisions = registry.decisions

    def forward(
        self,
        request: Request,
        params: Params,
        method: Method,
        client: DownstreamClient,
        check: EntryCheck | None = None,
    ) -> Awaitable[Raw]:
        """Route a request and send it; raises RpcError at once, or when awaited."""
        context = CallContext(
            client.caller, request, method, params, client, params.has_only_name_and_arguments
        )
        try:
            route, context.arguments = self.route(params, method, client)
        except BaseException as error:
            self.pipeline.register(context)
            if isinstance(error, RpcError):
                if not self.registry.catalog_complete:
                    return self._forward_when_ready(context, check)
                if (waiting := self._check_unrouted(context)) is not None:
                    return self._refuse_later(context, error, waiting)
            self._finish_unrouted(context, error)
            raise
        context.entry = route.entry
        if route.wrapper is not None:
            context.wrapper = route.wrapper.entry
        if check is not None:
            self._check_entry(check, context, route.entry)
        return self.pipeline.execute(context, route)

    def _check_entry(self, check: EntryCheck, context: CallContext, entry: CatalogEntry) -> None:
        try:
            check(entry, context.params)
        except RpcError as error:
            raise self._refuse(context, error) from None
        except BaseException as error:
            self.pipeline.register(context)
            self.pipeline.finish(context, error=error)
            raise

    async def _forward_when_ready(self, context: CallContext, check: EntryCheck | None) -> Raw:
        """Forward a call that could not be routed, once upstreams have started."""
        try:
            await self.registry.wait_startup()
            route, context.arguments = self.route(context.params, context.method, context.client)
        except BaseException as error:
            waiting = self._check_unrouted(context) if isinstance(error, RpcError) else None
            if waiting is not None:
                await waiting
            self._finish_unrouted(context, error)
            raise
        context.entry = route.entry
        if route.wrapper is not None:
            context.wrapper = route.wrapper.entry
        if check is not None:
            self._check_entry(check, context, route.entry)
        return await self.pipeline.execute(context, route)

    def _refresh_route(self, context: CallContext, route: Route) -> Route:
        """Return the current route of a call that has waited; raises RpcError if it has none."""
        if route.generation == self._decisions.generation:
            return route
        if context.wrapper is None:
            route, context.arguments = self.route(context.params, context.method, context.client)
        else:  # the params have been unwrapped
            name, client = context.params.require_text("name"), context.client
            wrapper = self._route_visible(context.method, context.wrapper.public_name, client)
            route = self._route_inner_tool(name, wrapper, client)
            context.wrapper = wrapper.entry
        context.entry = route.entry
        return route

    def _check_unrouted(self, context: CallContext) -> Awaitable[None] | None:
        """Check a call that could not be routed, before its client learns why; raises RpcError.

        If a `call_tool` names no tool, these are the checks of `call_tool` itself.
        """
        wrapper = self._note_call_tool(context)
        checks = (self.pipeline.count_unknown,) if wrapper is None else wrapper.checks
        return self.pipeline.check_unrouted(context, checks)

    async def _refuse_later(
        self, context: CallContext, error: RpcError, waiting: Awaitable[None]
    ) -> Raw:
        await waiting
        self._finish_unrouted(context, error)
        raise error

    def _note_call_tool(self, context: CallContext) -> Route | None:
        """Return the route of the `call_tool` that a failed call used, and note what it called."""
        route: Route | None = None
        if context.method.kind is not FeatureKind.TOOL:
            return None
        try:
            name = context.params.require_text("name")
            named = self._route_visible(context.method, name, context.client)
            if not named.is_call_tool:
                return None
            route = named
            context.entry, context.arguments = route.entry, context.params.get("arguments")
            context.wrapped_tool, _ = unwrap_call(context.params)
        except RpcError:
            return route  # the params name nothing, or the inner call is malformed
        context.entry, context.wrapper, context.arguments = None, route.entry, None
        return route

    def _finish_unrouted(self, context: CallContext, error: BaseException) -> None:
        """End a call that could not be routed."""
        try:
            self._record_failed_lookup(context, error)
        finally:
            self.pipeline.finish(context, error=error)

    def _record_failed_lookup(self, context: CallContext, error: BaseException) -> None:
        """Record the entry that a failed call meant: hidden, or called with bad arguments."""
        context.rule = None  # a rule that allowed `call_tool` says nothing of the tool within
        entry = self._lookup_for_audit(context)
        if entry is None:
            return
        if self._if_visible(entry, context.client) is None:
            context.rule = self.pipeline.hiding_rule(context.caller, entry)
            if context.rule is not None and isinstance(error, RpcError):
                # Only its client is told that it is unknown.
                context.status, context.backend = "denied", entry.backend
            return
        context.entry = entry
        context.arguments = context.params.get("arguments")
        if isinstance(error, RpcError):
            context.status, context.mismatch = "invalid_arguments", error.message

    def _lookup_for_audit(self, context: CallContext) -> CatalogEntry | None:
        """Return the entry that a failed call meant, even if hidden from the caller."""
        method, params = context.method, context.params
        try:
            if method.mode is BY_REF:
                return self._find_reference(params)
            if method.mode is not BY_NAME:
                return self._find_resource(params.require_text("uri"))
            if context.wrapped_tool is not None:
                return self._find_wrapped_tool(context.wrapped_tool)
            return self._find_named(method, params.require_text("name"))
        except RpcError:
            return None  # the params name nothing

    def refuse_routed(
        self,
        request: Request,
        client: DownstreamClient,
        caller: Caller,
        error: RpcError,
        route: Route,
    ) -> RpcError:
        """Count and record a call refused before its checks; return its client's error."""
        method = CLIENT_REQUESTS.get(request.method)
        if method is None or not method.is_call:
            return error
        context = CallContext(caller, request, method, Params(Raw(b"{}")), client)
        context.entry = route.entry
        context.wrapper = None if route.wrapper is None else route.wrapper.entry
        return self._refuse(context, error)

    def refuse_unreadable(
        self, request: Request, client: DownstreamClient, caller: Caller, error: RpcError
    ) -> RpcError:
        """Count and record a call whose params cannot be read; return its client's error."""
        method = CLIENT_REQUESTS.get(request.method)
        if method is None or not method.is_call:
            return error
        context = CallContext(caller, request, method, Params(Raw(b"{}")), client)
        context.status = "error"  # the entry was not looked up
        return self._refuse(context, error)

    def _refuse(self, context: CallContext, error: RpcError) -> RpcError:
        """Count, record and end a call that no check has counted; return its client's error."""
        try:
            waiting = self.pipeline.count_unknown(context)
        except RpcError as exceeded:
            waiting, error = None, exceeded
            context.status = None
        if waiting is not None:
            # A store that answers later counts the call, but does not change its error.
            PendingResult.from_awaitable(waiting)
        self.pipeline.register(context)
        self.pipeline.finish(context, error=error)
        return error

    def list_features(
        self, kind: FeatureKind, params: Params, caller: Caller, write: Callable[[FeatureKind], Raw]
    ) -> Raw | Coroutine[Any, Any, Raw]:
        """Answer a list request from the catalogue, which is always one page."""
        if bytes(params.get("cursor") or b"null") != b"null":
            raise RpcError.invalid_params(
                "unknown cursor: the gateway returns each list on one page"
            )
        return self.registry.when_listed(caller, partial(write, kind))

    async def route_when_ready(
        self, params: Params, method: Method, client: DownstreamClient
    ) -> Route:
        """Return the route of a request, after startup if there is none yet."""
        try:
            return self.route(params, method, client)[0]
        except RpcError:
            if self.registry.catalog_complete:
                raise
        await self.registry.wait_startup()
        return self.route(params, method, client)[0]

    def route(
        self, params: Params, method: Method, client: DownstreamClient
    ) -> tuple[Route, Raw | None]:
        """Return the route of a request, and its arguments; raises RpcError."""
        if method.mode is not BY_NAME:
            return self._route_unnamed(params, method, client)
        name, arguments = params.name_and_arguments()
        route = self._decisions.route(method, name) or self._route_by_name(method, name, client)
        if route.is_restricted:
            if not route.caller_rules.get(client.caller).is_visible:
                raise self._unknown_name_error(method, name, client)
            if route.is_call_tool:
                return self._route_wrapped_call(params, route, client), params.get("arguments")
        return route, arguments

    def _route_visible(self, method: Method, name: str, client: DownstreamClient) -> Route:
        """Return the route of a name that the caller may see; raises RpcError."""
        route = self._decisions.route(method, name) or self._route_by_name(method, name, client)
        if route.is_restricted and not route.caller_rules.get(client.caller).is_visible:
            raise self._unknown_name_error(method, name, client)
        return route

    def _route_unnamed(
        self, params: Params, method: Method, client: DownstreamClient
    ) -> tuple[Route, Raw | None]:
        """Route a completion or a resource; not cached, since clients may make up any URI."""
        if method.target is None:
            raise RpcError.method_not_found(method.name)
        if method.mode is BY_REF:
            entry = self._resolve_reference(params, client)
            route = self._build_route(entry, partial(_set_native_reference, entry))
        else:
            entry = self._resolve_resource(params, client)
            is_renamed = entry.native_name != entry.public_name
            route = self._build_route(
                entry, finish=partial(_restore_public_uri, entry) if is_renamed else None
            )
        return route, params.get("arguments")

    def _route_by_name(self, method: Method, name: str, client: DownstreamClient) -> Route:
        """Build the route of a name and cache it."""
        entry = self._find_named(method, name)
        if entry is None:
            raise self._unknown_name_error(method, name, client)
        route = self._build_route(entry)
        self._decisions.add_route(method, name, route)
        return route

    def _find_named(self, method: Method, name: str) -> CatalogEntry | None:
        """Return the feature that a method names, also if it is hidden."""
        return None if method.kind is None else self.registry.catalog.find(method.kind, name)

    def _build_route(
        self,
        entry: CatalogEntry,
        prepare: Callable[[Params], None] | None = None,
        finish: Callable[[PendingResult], None] | None = None,
        wrapper: Route | None = None,
    ) -> Route:
        """Resolve everything that is the same for all calls of an entry."""
        visibility = self.registry.visibility
        if prepare is None and entry.native_name != entry.public_name:
            prepare = partial(_set_native_name, entry.kind.key, entry.native_name)
        caller_rules = CallerCache(partial(self._rules_for, entry))
        upstream = self.registry.upstream(entry.backend)
        checks = self.pipeline.checks_for(entry, caller_rules, wrapper)
        # Its next state invalidates this route, so other calls pay nothing.
        start_check = partial(_wait_started, upstream) if upstream.must_start else None
        if start_check is not None:
            checks = (*checks, start_check)
        return Route(
            entry,
            upstream,
            checks,
            caller_rules,
            not visibility.is_unrestricted,
            visibility.is_call_tool(entry),
            prepare,
            finish,
            self._decisions.generation,
            wrapper,
            start_check,
        )

    def _rules_for(self, entry: CatalogEntry, caller: Caller) -> CallerRules:
        """Decide what holds for all calls of an entry by a caller."""
        if not self.registry.visibility.is_visible(caller, entry):
            return CallerRules(is_visible=False)
        return self.pipeline.rules_for(caller, entry)

    def _unknown_name_error(self, method: Method, name: str, client: DownstreamClient) -> RpcError:
        """Return the error for an unknown name; raises if its upstream is not ready."""
        kind = method.kind
        if kind is None:
            return RpcError.method_not_found(method.name)
        label = KIND_NAMES[kind]
        self._check_upstream_ready(kind, name, client)
        if not self.registry.catalog.entries(kind):
            return RpcError(INVALID_PARAMS, f"No {label}s available")
        return RpcError(INVALID_PARAMS, f"Unknown {label}: {name}")

    def _route_wrapped_call(
        self, params: Params, wrapper: Route, client: DownstreamClient
    ) -> Route:
        """Route the inner tool of a `call_tool`, and rewrite the params to call it."""
        name, arguments = unwrap_call(params)
        route = self._route_inner_tool(name, wrapper, client)
        params.put("name", name)
        params.put("arguments", arguments)
        return route

    def _route_inner_tool(self, name: str, wrapper: Route, client: DownstreamClient) -> Route:
        entry = self._if_visible(self._find_wrapped_tool(name), client)
        if entry is None:
            self._check_upstream_ready(FeatureKind.TOOL, name, client)
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}")
        if entry.header_params:  # headers mirrored the arguments of `call_tool`
            entry = entry._replace(header_params=())
        return self._build_route(entry, wrapper=wrapper)

    def _find_wrapped_tool(self, name: str) -> CatalogEntry | None:
        """Return the tool of this name, unless it is a `call_tool` itself."""
        entry = self.registry.catalog.find(FeatureKind.TOOL, name)
        return None if entry is None or self.registry.visibility.is_call_tool(entry) else entry

    def _if_visible(
        self, entry: CatalogEntry | None, client: DownstreamClient
    ) -> CatalogEntry | None:
        visible = entry is not None and self.registry.visibility.is_visible(client.caller, entry)
        return entry if visible else None

    def _check_upstream_ready(self, kind: FeatureKind, name: str, client: DownstreamClient) -> None:
        """Raise if a name has the prefix of an upstream that is not ready.

        A kill switch has precedence over the state of the upstream.
        """
        for upstream in self.registry:
            prefix = upstream.settings.prefix
            if prefix and name.startswith(prefix + NAME_SEPARATOR) and not upstream.ready:
                native = name.removeprefix(prefix + NAME_SEPARATOR)
                entry = CatalogEntry(kind, name, upstream.name, native, _EMPTY_DEFINITION)
                if self._if_visible(entry, client):
                    self.pipeline.check_disabled(client.caller, entry)
                    raise upstream.unavailable_error(client.caller.revision)

    def _resolve_reference(self, params: Params, client: DownstreamClient) -> CatalogEntry:
        entry = self._if_visible(self._find_reference(params), client)
        if entry is None:
            raise RpcError.invalid_params("unknown 'ref'")
        return entry

    def _find_reference(self, params: Params) -> CatalogEntry | None:
        reference = Params(params.get("ref") or Raw(b"null"))
        catalog = self.registry.catalog
        if reference.require_text("type") == "ref/prompt":
            return catalog.find(FeatureKind.PROMPT, reference.require_text("name"))
        uri = reference.require_text("uri")
        return catalog.find(FeatureKind.TEMPLATE, uri) or catalog.find_resource(uri)

    def _resolve_resource(self, params: Params, client: DownstreamClient) -> CatalogEntry:
        uri = params.require_text("uri")
        entry = self._if_visible(self._find_resource(uri), client)
        if entry is None:
            # 2026-07-28 no longer uses RESOURCE_NOT_FOUND.
            code = INVALID_PARAMS if client.caller.revision.is_stateless else RESOURCE_NOT_FOUND
            reason = find_ambiguity(uri)
            text = "Resource not found" if reason is None else f"Resource not found: {reason}"
            raise RpcError(code, text, {"uri": uri})
        return entry

    def _find_resource(self, uri: str) -> CatalogEntry | None:
        return self.registry.catalog.find_resource(uri) or self._only_resource_server(uri)

    def _only_resource_server(self, uri: str) -> CatalogEntry | None:
        """Return the entry of the only upstream with resources: it may know unlisted URIs."""
        if find_ambiguity(uri) is not None:
            return None  # rules would judge another resource than the server returns
        names = [u.name for u in self.registry if u.supports("resources")]
        return (
            CatalogEntry(FeatureKind.RESOURCE, uri, names[0], uri, _EMPTY_DEFINITION)
            if len(names) == 1
            else None
        )

    def may_receive_update(
        self, caller: Caller, backend: str, native: str, listed: str | None
    ) -> bool:
        """Return whether a caller may still see a resource that it subscribed to."""
        entry = CatalogEntry(
            FeatureKind.RESOURCE, listed or native, backend, native, _EMPTY_DEFINITION
        )
        return self.registry.visibility.is_visible(caller, entry)

    async def broadcast(self, request: Request, method: Method, client: DownstreamClient) -> Raw:
        """Send a request to every upstream that has the method; return the first result.

        Raises RpcError if there is no upstream, or the first error if all upstreams refuse. Policy
        and limits judge only features, so where there are any, no upstream gets it.
        """
        await self.registry.wait_startup()
        upstreams = [u for u in self.registry if self._may_broadcast(method, client.caller, u)]
        if not upstreams:
            raise RpcError.method_not_found(method.name)
        calls = (self._broadcast_to(u, request, method, client) for u in upstreams)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(errors) == len(answers):
            raise errors[0]
        return next(answer for answer in answers if not isinstance(answer, BaseException))

    def _may_broadcast(self, method: Method, caller: Caller, upstream: Upstream) -> bool:
        revision, capabilities = upstream.revision, upstream.capabilities
        return (
            revision is not None
            and capabilities is not None
            and method.is_known_to(revision, capabilities)
            and self.registry.visibility.can_see_backend(
                self.registry.catalog, caller, upstream.name
            )
            and self.pipeline.allows_passthrough(caller, upstream.name)
        )

    async def _broadcast_to(
        self, upstream: Upstream, request: Request, method: Method, client: DownstreamClient
    ) -> Raw:
        return await self.call_upstream(request, Params(request.params), upstream, client, method)

    def call_upstream(
        self,
        request: Request,
        params: Params,
        upstream: Upstream,
        client: DownstreamClient,
        method: Method | None = None,
    ) -> PendingResult:
        """Send a request that names no feature; it is not checked or recorded as a call.

        Without `method`, MCP does not define the request.
        """
        method = method or undefined_method(request.method)
        context = CallContext(client.caller, request, method, params, client, backend=upstream.name)
        if upstream.must_start:
            return PendingResult.from_awaitable(self._pass_when_started(context, upstream))
        return self.pipeline.pass_through(context, upstream)

    async def _pass_when_started(self, context: CallContext, upstream: Upstream) -> Raw:
        await upstream.wait_started(context.caller)
        return await self.pipeline.pass_through(context, upstream)

    def passthrough_upstream(self, method: str, caller: Caller) -> Upstream:
        """Return the upstream for a method that MCP does not define: the only one there is.

        Raises RpcError if there are several, or if the enforcer forbids it.
        """
        upstream = self.only_upstream()
        if upstream is None or is_defined(method) or method.startswith("notifications/"):
            raise RpcError.method_not_found(method)
        if not self.pipeline.allows_passthrough(caller, upstream.name):
            raise RpcError.method_not_found(method)
        return upstream

    def notified_upstreams(
        self, name: str, method: Method | None, caller: Caller
    ) -> list[Upstream]:
        """Return the upstreams that get a client's notification; `method` is None if MCP has none.

        A notification that MCP does not define goes to the only upstream, as such a request does.
        """
        if method is not None:
            return [u for u in self.registry if self.may_send(caller, u.name)]
        upstream = self.only_upstream()
        if upstream is None or is_defined(name):
            return []
        allowed = self.pipeline.allows_passthrough(caller, upstream.name)
        return [upstream] if allowed else []

    def may_send(self, caller: Caller, backend: str) -> bool:
        """Return whether a caller sees anything of a backend, and no kill switch is on."""
        return self.pipeline.may_send(caller, backend) and self.registry.visibility.can_see_backend(
            self.registry.catalog, caller, backend
        )

    def only_upstream(self) -> Upstream | None:
        """Return the only upstream, None if there are several."""
        upstreams = list(self.registry)
        return upstreams[0] if len(upstreams) == 1 else None


def _wait_started(upstream: Upstream, context: CallContext) -> Decision:
    """Delay a call until its upstream has started; this is a CallCheck."""
    # The upstream itself ends the wait after `timeout`: that error names the upstream.
    timeout = upstream.settings.timeout + 1.0
    return Deferred(upstream.wait_started(context.caller), timeout)


def _set_native_name(member: str, name: str, params: Params) -> None:
    params.put(member, name)


def _set_native_reference(entry: CatalogEntry, params: Params) -> None:
    reference = Params(params.get("ref"))
    reference.put("name" if entry.kind is FeatureKind.PROMPT else "uri", entry.native_name)
    params.put("ref", reference.encode())


def _restore_public_uri(entry: CatalogEntry, pending: PendingResult) -> None:
    """Replace the native URI in a result or error by the public one."""
    if isinstance(pending.error, RpcError):
        pending.error = _with_public_uri(pending.error, entry)
    if pending.error is not None:
        return
    try:
        result = read_members(pending.result)
        contents = [read_members(item) for item in from_raw(result["contents"], list[Raw])]
        for content in contents:
            if from_raw(content["uri"], object) == entry.native_name:
                content["uri"] = to_raw(entry.public_name)
    except (KeyError, ValueError):
        return  # malformed result: pass it on as it is
    pending.result = to_raw(result | {"contents": to_raw(contents)})


def _with_public_uri(error: RpcError, entry: CatalogEntry) -> RpcError:
    """Return an error with the public URI: the native URI may name another server's resource."""
    try:
        data = read_members(to_raw(None if error.data is UNSET else error.data))
        if from_raw(data["uri"], object) != entry.native_name:
            return error
    except (KeyError, ValueError):
        return error
    return RpcError(error.code, error.message, data | {"uri": to_raw(entry.public_name)})
