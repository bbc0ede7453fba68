// Checks that run in the order of their definition; the first difference ends the run.

import { inspect, isDeepStrictEqual } from "node:util";

const checks = [];

/** What came differs from what was wanted. */
export class Difference extends Error {}

/** Registers a function as the check `name`. */
export function check(name, run) {
  checks.push({ name, run });
}

/** Runs every check, prints one line for each, and ends the program. */
export async function runAll() {
  for (const { name, run } of checks) {
    const began = performance.now();
    try {
      await run();
    } catch (error) {
      console.log(`FAILED ${name}: ${error instanceof Difference ? error.message : error.stack}`);
      process.exit(1);
    }
    console.log(`ok ${name} (${((performance.now() - began) / 1000).toFixed(1)} s)`);
  }
  console.log(`${checks.length} checks passed`);
}

/** Fails unless `got` is `want`. */
export function equal(what, got, want) {
  if (!isDeepStrictEqual(got, want)) {
    throw new Difference(`${what}: got ${inspect(got, { depth: 6 })}, want ${inspect(want, { depth: 6 })}`);
  }
}

/** Fails unless `low <= got <= high`. */
export function within(what, got, low, high) {
  if (!(got >= low && got <= high)) {
    throw new Difference(`${what}: got ${inspect(got)}, want ${low} to ${high}`);
  }
}

/** Fails unless `got` is a text that starts with `prefix`. */
export function starts(what, got, prefix) {
  if (typeof got !== "string" || !got.startsWith(prefix)) {
    throw new Difference(`${what}: got ${inspect(got)}, want '${prefix}' first`);
  }
}

/**
 * Fails unless `call` rejects with a `kind` of these values; returns the error.
 *
 * `message` is a part of the wanted message. The envelope's four keys and the request id are always checked.
 */
export async function refused(what, kind, call, status, { code = null, param = null, message = "" } = {}) {
  let result;
  try {
    result = await call();
  } catch (error) {
    if (!(error instanceof kind)) throw error;
    equal(`${what}: status`, error.status, status);
    equal(`${what}: code`, error.code, code);
    equal(`${what}: param`, error.param, param);
    equal(`${what}: keys of the error`, Object.keys(error.error).sort(), ["code", "message", "param", "type"]);
    starts(`${what}: request id`, error.requestID, "req_");
    if (!error.error.message || !error.error.message.includes(message)) {
      throw new Difference(`${what}: got the message '${error.error.message}', want '${message}' in it`);
    }
    return error;
  }
  throw new Difference(`${what}: got ${inspect(result)}, want ${kind.name}`);
}
