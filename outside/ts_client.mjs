// The official TypeScript client, driving a gateway: node ts_client.mjs COMMAND ARGS…; prints JSON.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  ToolListChangedNotificationSchema,
} from "@modelcontextprotocol/sdk/types.js";

const [command, ...args] = process.argv.slice(2);
const client = new Client(
  { name: "ts-client", version: "1" },
  { capabilities: { sampling: {}, elicitation: {}, roots: { listChanged: true } } },
);
const found = { asked: [], progress: [] };
let changed = () => {};

client.setRequestHandler(CreateMessageRequestSchema, async () => {
  found.asked.push("sampling/createMessage");
  return { role: "assistant", content: { type: "text", text: "a sample" }, model: "m" };
});
client.setRequestHandler(ElicitRequestSchema, async (request) => {
  found.asked.push("elicitation/create");
  found.elicitation = request.params.message;
  return { action: "decline" };
});
client.setRequestHandler(ListRootsRequestSchema, async () => {
  found.asked.push("roots/list");
  return { roots: [{ uri: "file:///tmp", name: "tmp" }] };
});
client.setNotificationHandler(ToolListChangedNotificationSchema, () => changed());

await client.connect(new StdioClientTransport({ command, args, stderr: "inherit" }));
found.server = client.getServerVersion();

const wanted = ["everything__trigger-elicitation-request", "time__convert_time", "fs__read_text_file"];
for (;;) {
  const next = new Promise((resolve) => (changed = resolve));
  const { tools } = await client.listTools();
  const names = tools.map((tool) => tool.name);
  if (wanted.every((name) => names.includes(name))) {
    found.tools = names.length;
    break;
  }
  await next;
}

const call = (name, input, options) =>
  client.callTool({ name, arguments: input }, undefined, options);
found.sum = (await call("everything__get-sum", { a: 19, b: 23 })).content[0].text;
found.sample = (await call("everything__trigger-sampling-request", { prompt: "x" })).content;
found.declined = (await call("everything__trigger-elicitation-request", {})).content;
await call(
  "everything__trigger-long-running-operation",
  { duration: 1, steps: 3 },
  { onprogress: ({ progress }) => found.progress.push(progress) },
);
const abort = new AbortController();
const slow = call(
  "everything__trigger-long-running-operation",
  { duration: 30, steps: 300 },
  { signal: abort.signal, onprogress: () => abort.abort("enough") },
);
found.cancelled = await slow.then(() => false, () => true);
found.prompts = (await client.listPrompts()).prompts.map((prompt) => prompt.name);
found.completion = (
  await client.complete({
    ref: { type: "ref/prompt", name: "everything__completable-prompt" },
    argument: { name: "department", value: "E" },
  })
).completion.values;
const { resources } = await client.listResources();
found.resource = (await client.readResource({ uri: resources[0].uri })).contents.length;
found.templates = (await client.listResourceTemplates()).resourceTemplates.length;
found.unknown = await call("nobody__home", {}).then(() => "answered", (error) => error.code);
await client.setLoggingLevel("debug");
await client.ping();
await client.close();
console.log(JSON.stringify(found));
