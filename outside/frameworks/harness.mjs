// What harness.py does, for frameworks in JavaScript.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

async function serve([command, ...args]) {
  const gateway = spawn(command, [...args, "--http", "127.0.0.1:0"], { stdio: ["ignore", "ignore", "pipe"] });
  for await (const line of createInterface({ input: gateway.stderr })) {
    if (line.startsWith("MCP at ")) {
      gateway.stderr.resume();
      return [gateway, line.split(" ").at(-1)];
    }
  }
}

export async function main(use) {
  const found = [];
  for (const run of JSON.parse(process.argv[2])) {
    let gateway;
    const target = { ...run, command: [...run.command, "--stdio"] };
    if (run.transport === "http") [gateway, target.url] = await serve(run.command);
    for (let session = 0; session < 2; session++) {
      const { names, result } = await use(target);
      found.push([names.sort(), JSON.stringify(result)]);
    }
    if (gateway) {
      gateway.kill();
      await once(gateway, "exit");
    }
  }
  console.log("\n" + JSON.stringify(found));
  process.exit(0);
}
