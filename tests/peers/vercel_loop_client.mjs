// Tool loops of the Vercel AI SDK's providers against the proxy at argv[2], for each model after it.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [address, ...models] = process.argv.slice(2);
const providers = {
  openai: createOpenAI({ baseURL: `${address}/v1`, apiKey: "k" }),
  compatible: createOpenAICompatible({ name: "slipform", baseURL: `${address}/v1`, apiKey: "k" }),
  anthropic: createAnthropic({ baseURL: `${address}/v1`, apiKey: "k" }),
  google: createGoogleGenerativeAI({ baseURL: `${address}/v1beta`, apiKey: "k" }),
};
const forecast = tool({ inputSchema: z.object({ city: z.string() }), execute: async () => "rain" });
const results = {};
for (const name of models) {
  for (const [provider, model] of Object.entries(providers)) {
    const run = streamText({
      model: model(name), tools: { forecast }, stopWhen: stepCountIs(5), prompt: "Weather?", maxRetries: 0,
      onError: ({ error }) => { results[`${name} ${provider} error`] = String(error); },
    });
    try {
      const steps = await run.steps;
      results[`${name} ${provider}`] = [steps.length, await run.text];
    } catch (error) {
      results[`${name} ${provider}`] = String(error);
    }
  }
}
console.log(JSON.stringify(results));
