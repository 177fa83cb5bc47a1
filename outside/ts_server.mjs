// A server on the official TypeScript SDK 2.x for the stateless protocol only: node ts_server.mjs stdio | PORT
import { createServer } from "node:http";
import { Readable } from "node:stream";
import { McpServer, createMcpHandler, inputRequired, inputResponse } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";

const size = { type: "object", properties: { size: { type: "integer" } }, required: ["size"] };
const question = { role: "user", content: { type: "text", text: "What is it?" } };
const say = (text) => ({ content: [{ type: "text", text }] });

const factory = () => {
  const server = new McpServer({ name: "outside-ts", version: "2" });
  server.registerTool("ask_all", {}, async ({ mcpReq }) => {
    const answer = (key) => inputResponse(mcpReq.inputResponses, key);
    if (answer("size").kind === "missing") {
      return inputRequired({
        inputRequests: {
          size: inputRequired.elicit({ message: "Which size?", requestedSchema: size }),
          place: inputRequired.elicitUrl({ message: "Please sign in", url: "https://example.org/sign-in" }),
          thought: inputRequired.createMessage({ messages: [question], maxTokens: 10 }),
          places: inputRequired.listRoots(),
        },
        requestState: "é",
      });
    }
    const { content } = answer("thought").result;
    const uris = answer("places").roots.map(({ uri }) => uri);
    return say([answer("size").content.size, answer("place").action, content.text, ...uris].join(" "));
  });
  return server;
};

if (process.argv[2] === "stdio") {
  serveStdio(factory, { legacy: "reject" });
} else {
  const handler = createMcpHandler(factory, { legacy: "reject" });
  const web = createServer(async (request, response) => {
    const { method, headers } = request;
    const body = method === "POST" ? Readable.toWeb(request) : undefined;
    const url = `http://${headers.host}${request.url}`;
    const answer = await handler.fetch(new Request(url, { method, headers, body, duplex: "half" }));
    response.writeHead(answer.status, Object.fromEntries(answer.headers));
    if (answer.body) Readable.fromWeb(answer.body).pipe(response);
    else response.end();
  });
  web.listen(Number(process.argv[2]), "127.0.0.1", () => console.log("listening"));
}
