// Runs the acceptance checklist against a service with the official SDK for Node.
//
// OPENAI_BASE_URL and OPENAI_API_KEY name a fresh service, NIGHTSHIFT_NODE_SDK the folder of the SDK. Prints one
// line for each check and ends with 1 at the first difference.

import { runAll } from "./node/checklist.mjs";
// The order of the imports is the order of the checks.
import "./node/lists.mjs";
import "./node/files.mjs";
import "./node/batches.mjs";
import "./node/answers.mjs";

await runAll();
