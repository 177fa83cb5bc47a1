// Receives webhooks with the npm library of Standard Webhooks, and prints what it accepts:
// `webhook_receiver.mjs KEY [STATUS…]`, as webhook_receiver.py.
import { createServer } from "node:http";
import { Webhook } from "standardwebhooks";

const [key, ...statuses] = process.argv.slice(2);
const webhook = new Webhook(key);

const server = createServer((request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    let message;
    try {
      message = webhook.verify(Buffer.concat(pieces).toString(), request.headers);
    } catch (error) {
      console.log(`refused: ${error.message}`);
      response.writeHead(401).end();
      return;
    }
    const status = Number(statuses.shift() ?? 204);
    console.log(`${status} ${request.headers["webhook-id"]} ${message.method}`);
    response.writeHead(status).end();
  });
});
server.listen(0, "127.0.0.1", () => {
  console.log(`listening at http://127.0.0.1:${server.address().port}/`);
});
