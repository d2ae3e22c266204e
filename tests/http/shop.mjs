// A shop in another language, for the proxy: node shop.mjs LEDGER
//
// Its effect is a line in the ledger, the key; its answer is random, so that only a replay can give it
// twice. With X-Hang: before or after it stops for ever before or after the effect; for as long as
// the file LEDGER.wait exists, it waits before the effect.
import { appendFileSync, existsSync } from "node:fs";
import { createServer } from "node:http";
import { randomBytes } from "node:crypto";

const ledger = process.argv[2];

const server = createServer((request, response) => {
  request.resume().on("end", () => {
    const key = request.headers["idempotency-key"] ?? "none";
    const hang = request.headers["x-hang"];
    appendFileSync(ledger, `${key} begins\n`);
    const effect = () => {
      if (hang === "before") return;
      if (hang === "wait" && existsSync(`${ledger}.wait`)) return setTimeout(effect, 5);
      appendFileSync(ledger, `${key}\n`);
      if (hang === "after") return;
      response.writeHead(201, { "Content-Type": "text/plain" });
      response.end(randomBytes(16).toString("hex"));
    };
    effect();
  });
});
server.listen(0, "127.0.0.1", 512, () => console.log(server.address().port));
