// The npm MCP client: one tool call with progress, printed as one line of JSON. Usage: client.mjs URL TO EVERY_S
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, to, everyS] = process.argv.slice(2);
const client = new Client({ name: "npm", version: "1" }, { capabilities: {} });
const transport = new StreamableHTTPClientTransport(new URL(url), {
  reconnectionOptions: {
    initialReconnectionDelay: 200,
    maxReconnectionDelay: 1000,
    reconnectionDelayGrowFactor: 1.5,
    maxRetries: 5,
  },
});
const progress = [];
let outcome;
await client.connect(transport);
try {
  const result = await client.callTool(
    { name: "count", arguments: { to: Number(to), every_s: Number(everyS) } },
    undefined,
    { onprogress: (p) => progress.push(p.progress), timeout: 20000 },
  );
  outcome = { result: result.content[0].text };
} catch (error) {
  outcome = { error: error.message };
}
console.log(JSON.stringify({ ...outcome, progress }));
process.exit(0);
