// A tool loop of the Vercel AI SDK's default OpenAI provider against the proxy at argv[2], for each model after it.
import { createOpenAI } from "@ai-sdk/openai";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "k" });
const forecast = tool({ inputSchema: z.object({ city: z.string() }), execute: async () => "rain" });
const results = {};
for (const name of process.argv.slice(3)) {
  const run = streamText({
    model: openai(name), tools: { forecast }, stopWhen: stepCountIs(5), prompt: "Weather?", maxRetries: 0,
    onError: ({ error }) => { throw error; },
  });
  const steps = await run.steps;
  results[name] = [steps.length, await run.text];
}
console.log(JSON.stringify(results));
