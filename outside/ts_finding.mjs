// The official TypeScript clients find a tool and call it; prints JSON.
// node ts_finding.mjs GENERATION MODE stdio COMMAND ARGS… | GENERATION MODE mcp URL
const [generation, mode, kind, target, ...args] = process.argv.slice(2);
const first = generation === "1";
const library = first
  ? {
      ...(await import("@modelcontextprotocol/sdk/client/index.js")),
      ...(await import("@modelcontextprotocol/sdk/client/streamableHttp.js")),
      ...(await import("@modelcontextprotocol/sdk/client/stdio.js")),
    }
  : {
      ...(await import("@modelcontextprotocol/client")),
      ...(await import("@modelcontextprotocol/client/stdio")),
    };

const options = first ? {} : { versionNegotiation: { mode } };
const client = new library.Client({ name: "ts-finding", version: generation }, options);
const transport =
  kind === "stdio"
    ? new library.StdioClientTransport({ command: target, args })
    : new library.StreamableHTTPClientTransport(new URL(target));
await client.connect(transport);

const call = (name, input) => client.callTool({ name, arguments: input });
const tools = (await client.listTools()).tools.map((tool) => tool.name);
let found = [];
while (!found.length) {
  const result = await call("search__find_tools", { query: "add two numbers" });
  found = result.structuredContent.tools.map((tool) => tool.name);
}
const described = (await call("search__describe_tool", { name: found[0] })).content[0].text;
const inside = { name: found[0], arguments: { a: 2, b: 3 } };
const called = (await call("search__call_tool", inside)).content[0].text;
const version = first ? (transport.protocolVersion ?? null) : client.getNegotiatedProtocolVersion();
console.log(JSON.stringify({ version, tools, found, described, called }));
await client.close();
