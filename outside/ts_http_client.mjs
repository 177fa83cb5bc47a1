// The official TypeScript clients by HTTP: node ts_http_client.mjs GENERATION WAY URL; prints JSON.
// GENERATION is 1 or 2; WAY is mcp, sse, or for 2 also auto or 2026-07-28, which find the other era.
const [generation, kind, url] = process.argv.slice(2);
const first = generation === "1";
const library = first
  ? {
      ...(await import("@modelcontextprotocol/sdk/client/index.js")),
      ...(await import("@modelcontextprotocol/sdk/client/streamableHttp.js")),
      ...(await import("@modelcontextprotocol/sdk/client/sse.js")),
      ...(await import("@modelcontextprotocol/sdk/types.js")),
    }
  : await import("@modelcontextprotocol/client");

// What the first generation knows by a schema, the second knows by its name.
const schemas = {
  "sampling/createMessage": "CreateMessageRequestSchema",
  "elicitation/create": "ElicitRequestSchema",
  "notifications/message": "LoggingMessageNotificationSchema",
  "notifications/resources/updated": "ResourceUpdatedNotificationSchema",
  "notifications/tools/list_changed": "ToolListChangedNotificationSchema",
};
const named = (method) => (first ? library[schemas[method]] : method);

const DOCUMENT = "trunkline:web:demo://resource/static/document/features.md";
const mode = { mcp: "legacy", sse: "legacy", auto: "auto" }[kind] ?? { pin: kind };
const options = { capabilities: { sampling: {}, elicitation: {} } };
if (!first) options.versionNegotiation = { mode };
const client = new library.Client({ name: "ts-http-client", version: generation }, options);
const found = { asked: [], progress: [], errors: [] };

client.onerror = (error) => found.errors.push(String(error));
client.setRequestHandler(named("sampling/createMessage"), async () => {
  found.asked.push("sampling/createMessage");
  return { role: "assistant", content: { type: "text", text: "a sample" }, model: "m" };
});
client.setRequestHandler(named("elicitation/create"), async () => {
  found.asked.push("elicitation/create");
  return { action: "accept", content: { name: "Ada", size: 42 } };
});

// Notifications are queued until they are read.
const hear = (method) => {
  const received = [];
  let wake = () => {};
  client.setNotificationHandler(named(method), ({ params }) => {
    received.push(params);
    wake();
  });
  return async () => {
    while (!received.length) await new Promise((resolve) => (wake = resolve));
    return received.shift();
  };
};
const logged = hear("notifications/message");
const updated = hear("notifications/resources/updated");
const changed = hear("notifications/tools/list_changed");

const call = (name, input = {}, options = undefined, _meta = undefined) => {
  const params = { name, arguments: input, ...(_meta && { _meta }) };
  return first ? client.callTool(params, undefined, options) : client.callTool(params, options);
};
const text = async (...args) => JSON.stringify((await call(...args)).content);

const ask = async () => {
  const { tools } = await client.listTools();
  found.tools = tools.map((tool) => tool.name);
  found.prompts = (await client.listPrompts()).prompts.length;
  found.resources = (await client.listResources()).resources.length;
  found.templates = (await client.listResourceTemplates()).resourceTemplates.length;
  found.read = (await client.readResource({ uri: DOCUMENT })).contents.length;
  found.prompt = (await client.getPrompt({ name: "sdk__greet", arguments: { name: "Ada" } })).messages;
  const ref = { type: "ref/prompt", name: "web__completable-prompt" };
  const argument = { name: "department", value: "E" };
  found.completion = (await client.complete({ ref, argument })).completion.values;
  for (const server of ["everything", "web", "sdk"]) {
    found[server] = await text(`${server}__echo`, { message: "one" });
  }
  const onprogress = ({ progress }) => found.progress.push(progress);
  await call("web__trigger-long-running-operation", { duration: 0.4, steps: 3 }, { onprogress });
  found.unknown = await call("nobody__home").then(() => "answered", (error) => error.code);
};

const giveUp = async () => {
  const abort = new AbortController();
  const held = call("sdk__hold", {}, { signal: abort.signal, onprogress: () => abort.abort("enough") });
  found.cancelled = await held.then(() => false, () => true);
  found.released = await text("sdk__released");
};

const inSession = async () => {
  for (const server of ["everything", "web"]) {
    found[`${server} sampled`] = await text(`${server}__trigger-sampling-request`, { prompt: "x" });
    found[`${server} asked`] = await text(`${server}__trigger-elicitation-request`);
  }
  await client.setLoggingLevel("debug");
  // Over stdio a message after the response would belong to no call.
  await call("everything__toggle-simulated-logging");
  // Servers may also log outside of calls.
  while (!found.log?.includes("-level message")) found.log = (await logged()).data;
  await call("everything__toggle-simulated-logging");
  await client.subscribeResource({ uri: DOCUMENT });
  await call("web__toggle-subscriber-updates");
  found.updated = (await updated()).uri;
  await call("web__toggle-subscriber-updates");
  await client.unsubscribeResource({ uri: DOCUMENT });
  await client.ping();
};

const inEnvelopes = async () => {
  found.order = await text("sdk__order");
  const level = { "io.modelcontextprotocol/logLevel": "warning" };
  await call("sdk__say", {}, undefined, level);
  found.log = (await logged()).data;
  const filter = { resourceSubscriptions: ["note://one"], toolsListChanged: true };
  const listening = await client.listen(filter);
  await call("sdk__touch");
  found.updated = (await updated()).uri;
  await call("sdk__learn");
  await changed();
  await listening.close();
  found.closed = await listening.closed;
};

const place = new URL(url);
const transport =
  kind === "sse"
    ? new library.SSEClientTransport(place)
    : new library.StreamableHTTPClientTransport(place);
await client.connect(transport);
found.server = client.getServerVersion();
found.version = first ? transport.protocolVersion : client.getNegotiatedProtocolVersion();
await ask();
await giveUp();
await (found.version === "2026-07-28" ? inEnvelopes() : inSession());
if (kind === "mcp") {
  const session = transport.sessionId;
  await transport.terminateSession();
  const headers = { accept: "text/event-stream", "mcp-session-id": session };
  found.after = (await fetch(url, { headers })).status;
}
await client.close();
console.log(JSON.stringify(found));
