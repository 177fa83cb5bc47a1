// Calls our server with jayson's TCP client: node jayson_client.js PORT; prints one JSON array.
const jayson = require("jayson/promise");

const client = jayson.Client.tcp({ host: "127.0.0.1", port: Number(process.argv[2]) });

async function main() {
  const batch = [
    client.request("sum", [1, 2], undefined, false),
    client.request("echo", { value: { text: "é😀" } }, undefined, false),
    client.request("nobody", [], undefined, false),
  ];
  const answers = [
    await client.request("sum", [1, 2, 3.5]),
    await client.request("echo", { value: [null, true, "x"] }),
    await client.request("nope", []),
    await client.request("echo", { wrong: 1 }),
    await client.request(batch),
  ];
  console.log(JSON.stringify(answers));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
