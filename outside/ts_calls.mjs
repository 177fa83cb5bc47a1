// The official TypeScript clients list tools and call some; prints JSON.
// node ts_calls.mjs GENERATION MODE URL INPUT; INPUT is JSON: `headers`, and `calls` as pairs.
const [generation, mode, url, input] = process.argv.slice(2);
const { headers, calls } = JSON.parse(input);
const first = generation === "1";
const library = first
  ? {
      ...(await import("@modelcontextprotocol/sdk/client/index.js")),
      ...(await import("@modelcontextprotocol/sdk/client/streamableHttp.js")),
    }
  : await import("@modelcontextprotocol/client");

const options = first ? {} : { versionNegotiation: { mode } };
const client = new library.Client({ name: "ts-calls", version: generation }, options);
const requestInit = { headers };
const transport = new library.StreamableHTTPClientTransport(new URL(url), { requestInit });
await client.connect(transport);
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const answers = [];
for (const [name, input] of calls) {
  try {
    answers.push({ result: await client.callTool({ name, arguments: input }) });
  } catch (error) {
    const { code, message, data } = error;
    answers.push({ error: { code, message, data } });
  }
}
const revision = first ? transport.protocolVersion : client.getNegotiatedProtocolVersion();
console.log(JSON.stringify({ revision, tools, answers }));
await client.close();
