// The example that a newcomer runs: a sentence, the shape it is to take, and the call that asks for it.
import { call } from './api.js';

export const SCHEMA = {
  title: 'order', type: 'object',
  properties: {
    customer: { type: 'string', description: 'Who ordered' },
    email: { type: 'string', format: 'email' },
    items: { type: 'array', minItems: 1, maxItems: 4, items: { type: 'object', properties: { name: { type: 'string' }, quantity: { type: 'integer', minimum: 1, maximum: 99 }, price: { type: 'number', minimum: 0 } }, required: ['name', 'quantity', 'price'], additionalProperties: false } },
    shipping: { enum: ['standard', 'express'] },
  },
  required: ['customer', 'email', 'items', 'shipping'], additionalProperties: false,
};
export const PROMPT = 'Ada Lovelace (ada@example.com) ordered 2 notebooks at 4.50 and 1 fountain pen at 29.00, sent by express.';

/** The body of a call with a schema, streamed, with its report. */
export function bodyOf({ model, schema, system, prompt, mode = 'live', attempts = 3, strategy = 'auto' }) {
  const name = schema.title ? String(schema.title).replace(/\W/g, '_').slice(0, 60) : 'playground';
  return {
    model, messages: [...(system ? [{ role: 'system', content: system }] : []), { role: 'user', content: prompt }], stream: true, stream_options: { include_usage: true },
    response_format: { type: 'json_schema', json_schema: { name, schema } },
    slipform: { report: true, stream_mode: mode, max_attempts: attempts, ...(strategy === 'auto' ? {} : { strategy }) },
  };
}

/** Run the sample on the default model and show it being poured. */
export async function runSample(state, button) {
  button.disabled = true;
  try {
    const response = await call('/v1/chat/completions', bodyOf({ model: state.model, schema: SCHEMA, prompt: PROMPT }));
    const id = response.headers.get('x-slipform-call');
    response.text();
    state.replay = id;
    if (id) state.go(`/console/r/${id}`);
  } finally { button.disabled = false; }
}

export function curl(origin, model) {
  const body = { model, messages: [{ role: 'user', content: 'Ada is 36' }], response_format: { type: 'json_schema', json_schema: { name: 'person', schema: { type: 'object', properties: { name: { type: 'string' }, age: { type: 'integer' } }, required: ['name', 'age'] } } } };
  return `curl ${origin}/v1/chat/completions \\\n  -H 'content-type: application/json' \\\n  -d '${JSON.stringify(body)}'`;
}
