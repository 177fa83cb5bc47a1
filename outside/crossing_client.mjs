// The TypeScript clients walk all ways that a server may ask them: node crossing_client.mjs GENERATION MODE SERVERS TARGET…
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

// What the first generation knows by a schema, the second knows by its name.
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

// What is told is kept until somebody asks for it.
const hear = (method) => {
  const told = [];
  let wake = () => {};
  client.setNotificationHandler(named(method), ({ params }) => {
    told.push(params);
    wake();
  });
  return async () => {
    while (!told.length) await new Promise((resolve) => (wake = resolve));
    return told.shift();
  };
};
const logged = hear("notifications/message");
const updated = hear("notifications/resources/updated");

const call = (name, input = {}, options = undefined, _meta = undefined) => {
  const params = { name, arguments: input, ...(_meta && { _meta }) };
  return first ? client.callTool(params, undefined, options) : client.callTool(params, options);
};
const text = async (...what) => (await call(...what)).content[0].text;

// Those that take long to start are listed later.
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
  // The first to be asked may be another process: this one was busy when we gave up.
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
  for (const tool of ["visit", "think", "places"]) found[tool] = await text(`${server}__${tool}`);
  const onprogress = ({ progress }) => found.progress.push(progress);
  // These clients drop a progress notification that is read together with the answer after it.
  await call(`${server}__steps`, { count: 3, pause: 0.05 }, { onprogress });
  if (!enveloped) await client.setLoggingLevel("warning");
  const level = enveloped ? { "io.modelcontextprotocol/logLevel": "warning" } : undefined;
  await call(`${server}__say`, {}, undefined, level);
  found.log = (await logged()).data;
  found.updated = await follow(server);
  await giveUp(server);
  found.asked = asked;
  asked = [];
  return found;
};

// The same before server-everything, which has other tools, and some of them only for those who can be asked.
const roam = async (server) => {
  const found = { progress: [] };
  const everything = (name, ...more) => text(`${server}__${name}`, ...more);
  // With the first call by HTTP it learns that there may be roots, and offers a tool for them. That comes first:
  // else it asks for roots in the midst of whatever comes next.
  await everything("echo", { message: "é" });
  await untilListed([server], "get-roots-list");
  found.places = await everything("get-roots-list");
  asked = [];
  found.structured = (await call(`${server}__get-structured-content`, { location: "Chicago" })).structuredContent;
  actions = ["accept", "decline", "cancel"];
  found.choose = [];
  while (actions.length) found.choose.push(await everything("trigger-elicitation-request"));
  found.think = await everything("trigger-sampling-request", { prompt: "x" });
  found.visit = await everything("trigger-url-elicitation", { url: "https://example.org/" });
  const onprogress = ({ progress }) => found.progress.push(progress);
  await everything("trigger-long-running-operation", { duration: 0.3, steps: 3 }, { onprogress });
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
