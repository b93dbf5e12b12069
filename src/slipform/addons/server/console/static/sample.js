// The example that a newcomer runs: a sentence, the shape it is to take, and the call that asks for it.
import { call } from './api.js';

const whole = (properties) => ({ type: 'object', properties, required: Object.keys(properties), additionalProperties: false });

/** What the embedded model, which is very small, gets right. */
export const SCHEMA = {
  title: 'order',
  ...whole({
    customer: { type: 'string', description: 'Who ordered' },
    email: { type: 'string', format: 'email' },
    address: whole({ street: { type: 'string' }, city: { type: 'string' } }),
    items: { type: 'integer', minimum: 1, maximum: 99 },
    total: { type: 'number', minimum: 0 },
    shipping: { enum: ['standard', 'express'] },
  }),
};
export const PROMPT = 'Customer: Ada Lovelace. Email: ada@example.com. Street: 12 St James\'s Square. City: London. Items: 3. Total: 33.50. Shipping: express.';

/** The body of a call with a schema, streamed, with its report. */
export function bodyOf({ model, schema, system, prompt, messages = null, tools = [], temperature = null, limit = null, mode = 'live', attempts = 3, strategy = 'auto' }) {
  const name = schema?.title ? String(schema.title).replace(/\W/g, '_').slice(0, 60) : 'playground';
  return {
    model, messages: [...(system ? [{ role: 'system', content: system }] : []), ...(messages || [{ role: 'user', content: prompt }])], stream: true, stream_options: { include_usage: true },
    ...(schema ? { response_format: { type: 'json_schema', json_schema: { name, schema } } } : {}), ...(tools.length ? { tools } : {}),
    ...(temperature === null ? {} : { temperature }), ...(limit === null ? {} : { max_tokens: limit }),
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
