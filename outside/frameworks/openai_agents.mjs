// OpenAI Agents SDK for JavaScript: its servers keep their first list.
import { MCPServerStdio, MCPServerStreamableHttp } from "@openai/agents";
import { main } from "./harness.mjs";

await main(async ({ url, command, tool, arguments: input }) => {
  const server = url
    ? new MCPServerStreamableHttp({ url, cacheToolsList: true })
    : new MCPServerStdio({ command: command[0], args: command.slice(1), env: process.env, cacheToolsList: true });
  await server.connect();
  const names = (await server.listTools()).map((each) => each.name);
  const result = await server.callTool(tool, input);
  await server.close();
  return { names, result };
});
