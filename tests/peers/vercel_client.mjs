// The Vercel AI SDK against the proxy at argv[2]; prints what it got as JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, streamText } from "ai";
import { z } from "zod";

const baseURL = `${process.argv[2]}/v1`;
const schema = z.object({ name: z.string(), age: z.number().int() });
const output = Output.object({ schema });
const openai = createOpenAI({ baseURL, apiKey: "k" });
const compatible = createOpenAICompatible({ baseURL, apiKey: "k", name: "slipform", supportsStructuredOutputs: true });
const models = { chat: openai.chat("m"), responses: openai.responses("m"), compatible: compatible("m") };
const seen = {};
for (const [name, model] of Object.entries(models)) {
  seen[name] = (await generateText({ model, output, prompt: "Ada is 36", maxRetries: 0 })).output;
  const stream = streamText({ model, output, prompt: "Ada is 36", maxRetries: 0 });
  seen[`${name} streamed`] = await stream.output;
}
console.log(JSON.stringify(seen));
