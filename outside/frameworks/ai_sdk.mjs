// Vercel's AI SDK: its MCP client can declare elicitation.
import { ElicitationRequestSchema, createMCPClient } from "@ai-sdk/mcp";
import { Experimental_StdioMCPTransport as Stdio } from "@ai-sdk/mcp/mcp-stdio";
import { main } from "./harness.mjs";

await main(async ({ url, command, tool, arguments: input, declare }) => {
  const transport = url
    ? { type: "http", url }
    : new Stdio({ command: command[0], args: command.slice(1), env: process.env });
  const capabilities = declare ? { elicitation: {} } : {};
  const client = await createMCPClient({ transport, capabilities });
  if (declare) client.onElicitationRequest(ElicitationRequestSchema, async () => ({ action: "decline" }));
  const tools = await client.tools();
  const result = await tools[tool].execute(input, { toolCallId: "1", messages: [] });
  await client.close();
  return { names: Object.keys(tools), result };
});
