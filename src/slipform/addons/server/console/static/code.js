// A request as code to copy: curl, Python with four libraries, TypeScript, pytest. Keys are never part of it.
import { turnsOf } from './trace.js';

const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const python = (value, indent = '') => {
  if (value === null || value === undefined) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  if (typeof value === 'string') return JSON.stringify(value).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`).replace(/\\ud([89ab]..)\\ud([c-f]..)/gi, (all) => pair(all));
  if (Array.isArray(value)) return value.length ? `[\n${value.map((each) => `${indent}    ${python(each, `${indent}    `)},\n`).join('')}${indent}]` : '[]';
  if (typeof value === 'object') {
    const entries = Object.entries(value);
    return entries.length ? `{\n${entries.map(([key, each]) => `${indent}    ${python(key)}: ${python(each, `${indent}    `)},\n`).join('')}${indent}}` : '{}';
  }
  return String(value);
};
const pair = (text) => {
  const [high, low] = text.match(/[0-9a-f]{4}/gi).map((each) => parseInt(each, 16));
  return `\\U${((high - 0xd800) * 0x400 + (low - 0xdc00) + 0x10000).toString(16).padStart(8, '0')}`;
};

const PATHS = { ollama: '/api/chat', 'openai-chat': '/v1/chat/completions', 'openai-responses': '/v1/responses', anthropic: '/v1/messages', gemini: null };


function curl(body, api, origin) {
  const path = PATHS[api] || `/v1beta/models/${encodeURIComponent(body.model || 'local')}:generateContent`;
  return `curl ${origin}${path} \\\n  -H 'content-type: application/json' \\\n  -H "authorization: Bearer $SLIPFORM_KEY" \\\n  -d ${shell(JSON.stringify(body))}\n`;
}

function pythonOpenAI(body, origin) {
  const { messages, model, stream, stream_options: options, response_format: format, ...rest } = body;
  return `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${python(`${origin}/v1`)}, api_key=os.environ.get("SLIPFORM_KEY", "none"))\nanswer = client.chat.completions.create(\n    model=${python(model || 'local')},\n    messages=${python(messages, '    ')},\n${format ? `    response_format=${python(format, '    ')},\n` : ''}${Object.keys(rest).length ? `    extra_body=${python(rest, '    ')},\n` : ''})\nprint(answer.choices[0].message.content)\n`;
}

function pythonAnthropic({ model, system, turns, schema }, origin) {
  const messages = turns.map(([role, content]) => ({ role, content }));
  return `import os\n\nfrom anthropic import Anthropic\n\nclient = Anthropic(base_url=${python(origin)}, api_key=os.environ.get("SLIPFORM_KEY", "none"))\nanswer = client.messages.create(\n    model=${python(model)},\n    max_tokens=2048,\n${system ? `    system=${python(system)},\n` : ''}    messages=${python(messages, '    ')},\n    extra_body=${python({ output_config: { format: { type: 'json_schema', schema } } }, '    ')},\n)\nprint(answer.content[0].text)\n`;
}

function pythonGenai({ model, system, turns, schema }, origin) {
  const contents = turns.map(([role, text]) => ({ role: role === 'assistant' ? 'model' : 'user', parts: [{ text }] }));
  const config = { response_mime_type: 'application/json', response_json_schema: schema, ...(system ? { system_instruction: system } : {}) };
  return `import os\n\nfrom google import genai\n\nclient = genai.Client(api_key=os.environ.get("SLIPFORM_KEY", "none"), http_options={"base_url": ${python(origin)}})\nanswer = client.models.generate_content(\n    model=${python(model)},\n    contents=${python(contents, '    ')},\n    config=${python(config, '    ')},\n)\nprint(answer.text)\n`;
}

function pythonSlipform({ model, system, turns, schema }, origin) {
  const messages = [...(system ? [['system', system]] : []), ...turns].map(([role, content]) => ({ role, content }));
  return `import json\nimport os\n\nfrom slipform import Client\n\nSCHEMA = ${python(schema)}\nMESSAGES = ${python(messages)}\n\n# A server that speaks OpenAI's API: this one. Its models keep their names after "openai/".\nwith Client(${python(`openai/${model}`)}, base_url=${python(`${origin}/v1`)}, api_key=os.environ.get("SLIPFORM_KEY", "none")) as client:\n    print(json.dumps(client.ask(SCHEMA, MESSAGES)))\n`;
}

function typescript(body, origin) {
  const { stream, stream_options: options, ...rest } = body;
  return `import OpenAI from 'openai';\n\nconst client = new OpenAI({ baseURL: ${JSON.stringify(`${origin}/v1`)}, apiKey: process.env.SLIPFORM_KEY ?? 'none' });\nconst answer = await client.chat.completions.create(${JSON.stringify({ ...rest, model: body.model || 'local' }, null, 2)});\nconsole.log(answer.choices[0].message.content);\n`;
}

function pytest(texts, schema) {
  const script = texts.map((text) => `    ${python(text || '')},\n`).join('');
  return `from slipform import Budget, Client, Options\nfrom slipform.providers.router import Router\nfrom slipform.testing import FakeModel\n\nSCHEMA = ${python(schema)}\nANSWERS = [\n${script}]\n\n\ndef test_the_recorded_answers_become_a_valid_value() -> None:\n    router = Router({"fake": FakeModel(ANSWERS)})\n    client = Client("fake/recorded", router=router, options=Options(budget=Budget(attempts=${texts.length})))\n    assert client.ask(SCHEMA, "recorded") is not None\n`;
}

/** What a call can be copied as: names, and what makes the code. */
export function copiesOf(row, body, schema, trace) {
  if (!body) return [];
  const isChat = row.api === 'openai-chat';
  const said = turnsOf(body);
  const plain = schema && said.length && !body.tools && said.every(([role, text]) => text && ['system', 'user', 'assistant', 'model'].includes(role));
  const call = { model: row.model || 'local', schema, system: said.filter(([role]) => role === 'system').map((each) => each[1]).join('\n'), turns: said.filter(([role]) => role !== 'system').map(([role, text]) => [role === 'model' ? 'assistant' : role, text]) };
  const { origin } = location;
  return [['curl', () => curl(isChat && body.stream ? { ...body, stream: undefined, stream_options: undefined } : body, row.api, origin)], ['Python · openai', isChat && (() => pythonOpenAI(body, origin))], ['Python · anthropic', plain && (() => pythonAnthropic(call, origin))], ['Python · google-genai', plain && (() => pythonGenai(call, origin))],
    ['Python · slipform', plain && (() => pythonSlipform(call, origin))], ['TypeScript', isChat && (() => typescript(body, origin))], ['pytest', schema && trace?.texts.some(Boolean) && (() => pytest(trace.texts, schema))]].filter(([, make]) => make);
}
