// The TypeScript clients run the scenario of crossing.py: node crossing_client.mjs GENERATION MODE SERVERS TARGET…
// GENERATION is 1 or 2; MODE is legacy or, for 2, a revision; SERVERS are names, with commas between them;
// the first of them begins with "every" if they are server-everything. TARGET is a URL, or a command. Prints JSON.
const [generation, mode, servers, target, ...args] = process.argv.slice(2);
const first = generation === "1";
const library = first
  ? {
      ...(await import("@modelcontextprotocol/sdk/client/index.js")),
      ...(await import("@modelcontextprotocol/sdk/client/streamableHttp.js")),
      ...(await import("@modelcontextprotocol/sdk/client/stdio.js")),
      ...(await import("@modelcontextprotocol/sdk/types.js")),
    }
  : {
      ...(await import("@modelcontextprotocol/client")),
      ...(await import("@modelcontextprotocol/client/stdio")),
    };

// SDK 1 identifies a method by its schema, SDK 2 by its name.
const schemas = {
  "sampling/createMessage": "CreateMessageRequestSchema",
  "elicitation/create": "ElicitRequestSchema",
  "roots/list": "ListRootsRequestSchema",
  "notifications/message": "LoggingMessageNotificationSchema",
  "notifications/resources/updated": "ResourceUpdatedNotificationSchema",
};
const named = (method) => (first ? library[schemas[method]] : method);

const capabilities = { sampling: {}, elicitation: { form: {}, url: {} }, roots: {} };
const options = { capabilities };
const enveloped = mode !== "legacy";
if (!first) options.versionNegotiation = { mode: enveloped ? { pin: mode } : "legacy" };
const client = new library.Client({ name: "ts-crossing", version: generation }, options);
let asked = [];
let actions = [];

const answer = (method, make) =>
  client.setRequestHandler(named(method), async ({ params }) => {
    asked.push([method, params ?? {}]);
    return make(params);
  });
answer("sampling/createMessage", () => {
  return { role: "assistant", content: { type: "text", text: "a sample" }, model: "m" };
});
answer("roots/list", () => ({ roots: [{ uri: "file:///here" }] }));
answer("elicitation/create", ({ mode, message }) => {
  if (mode === "url") return { action: "accept" };
  if (message.includes("word")) return { action: "accept", content: { word: message.split(" ")[0] } };
  const action = actions.shift();
  return action === "accept" ? { action, content: { size: 42, name: "Ada" } } : { action };
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
// What `say` logged. Other servers may log too, outside of calls; that is left out.
const readLog = async () => {
  const found = [];
  while (!found.includes("a shout")) {
    const { data } = await logged();
    if (["a whisper", "a shout"].includes(data)) found.push(data);
  }
  return found;
};
const updated = hear("notifications/resources/updated");

const call = (name, input = {}, options = undefined, _meta = undefined) => {
  const params = { name, arguments: input, ...(_meta && { _meta }) };
  return first ? client.callTool(params, undefined, options) : client.callTool(params, options);
};
const text = async (...what) => (await call(...what)).content[0].text;

// Slow servers appear later.
const untilListed = async (servers, tool) => {
  for (;;) {
    const names = (await client.listTools()).tools.map(({ name }) => name);
    if (servers.every((server) => names.includes(`${server}__${tool}`))) return names;
  }
};

const follow = async (server) => {
  const { resources } = await client.listResources();
  const marked = `trunkline:${server}:note://one`;
  const uri = resources.some((resource) => resource.uri === marked) ? marked : "note://one";
  const listening = enveloped && (await client.listen({ resourceSubscriptions: [uri] }));
  if (!enveloped) await client.subscribeResource({ uri });
  await call(`${server}__touch`);
  const found = (await updated()).uri;
  await (enveloped ? listening.close() : client.unsubscribeResource({ uri }));
  return found.replace(`trunkline:${server}:`, "");
};

const giveUp = async (server) => {
  const abort = new AbortController();
  const held = call(`${server}__hold`, {}, { signal: abort.signal, onprogress: () => abort.abort("enough") });
  await held.catch(() => {});
  // The next call may reach another process: this one was busy at the cancellation.
  while ((await text(`${server}__is_released`)) !== "released");
};

const walk = async (server) => {
  const found = { progress: [] };
  found.revision = await text(`${server}__revision`);
  found.weigh = (await call(`${server}__weigh`)).structuredContent;
  actions = ["accept", "decline", "cancel"];
  found.choose = [];
  while (actions.length) found.choose.push(await text(`${server}__choose`));
  found.twice = await text(`${server}__twice`, { name: "Ada" });
  for (const tool of ["open_url", "think", "places"]) found[tool] = await text(`${server}__${tool}`);
  const onprogress = ({ progress }) => found.progress.push(progress);
  // These clients drop a progress notification that is read together with the response after it.
  await call(`${server}__steps`, { count: 3, pause: 0.05 }, { onprogress });
  if (!enveloped) await client.setLoggingLevel("warning");
  const level = enveloped ? { "io.modelcontextprotocol/logLevel": "warning" } : undefined;
  await call(`${server}__say`, {}, undefined, level);
  found.log = await readLog();
  found.updated = await follow(server);
  await giveUp(server);
  found.asked = asked;
  asked = [];
  return found;
};

// The same with server-everything, which has other tools, some only for clients with input features.
const roam = async (server) => {
  const found = { progress: [] };
  const everything = (name, ...more) => text(`${server}__${name}`, ...more);
  // The first call over HTTP announces roots, for which the server adds a tool. It comes first, so that the
  // request for roots does not interrupt another call.
  await everything("echo", { message: "é" });
  await untilListed([server], "get-roots-list");
  found.places = await everything("get-roots-list");
  asked = [];
  found.structured = (await call(`${server}__get-structured-content`, { location: "Chicago" })).structuredContent;
  actions = ["accept", "decline", "cancel"];
  found.choose = [];
  while (actions.length) found.choose.push(await everything("trigger-elicitation-request"));
  found.think = await everything("trigger-sampling-request", { prompt: "x" });
  found.open_url = await everything("trigger-url-elicitation", { url: "https://example.org/" });
  const onprogress = ({ progress }) => found.progress.push(progress);
  await everything("trigger-long-running-operation", { duration: 0.6, steps: 6 }, { onprogress });
  found.asked = asked;
  asked = [];
  return found;
};

await client.connect(
  target.startsWith("http")
    ? new library.StreamableHTTPClientTransport(new URL(target))
    : new library.StdioClientTransport({ command: target, args, stderr: "inherit" }),
);
const found = {};
found.version = client.getNegotiatedProtocolVersion?.();
const sign = servers.startsWith("every") ? "trigger-url-elicitation" : "choose";
found.tools = await untilListed(servers.split(","), sign);
for (const server of servers.split(",")) found[server] = await (sign === "choose" ? walk : roam)(server);
await client.close();
console.log(JSON.stringify(found));
