// A request as code to copy: curl, Python, TypeScript, pytest. Keys are never part of it.

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

const PATHS = { 'openai-chat': '/v1/chat/completions', 'openai-responses': '/v1/responses', anthropic: '/v1/messages', gemini: null };

export function curl(body, api, origin) {
  const path = PATHS[api] || `/v1beta/models/${encodeURIComponent(body.model || 'local')}:generateContent`;
  return `curl ${origin}${path} \\\n  -H 'content-type: application/json' \\\n  -H "authorization: Bearer $SLIPFORM_KEY" \\\n  -d ${shell(JSON.stringify(body))}\n`;
}

export function pythonOpenAI(body, origin) {
  const { messages, model, stream, response_format: format, ...rest } = body;
  return `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${python(`${origin}/v1`)}, api_key=os.environ.get("SLIPFORM_KEY", "none"))\nanswer = client.chat.completions.create(\n    model=${python(model || 'local')},\n    messages=${python(messages, '    ')},\n${format ? `    response_format=${python(format, '    ')},\n` : ''}${Object.keys(rest).length ? `    extra_body=${python(rest, '    ')},\n` : ''})\nprint(answer.choices[0].message.content)\n`;
}

export function typescript(body, origin) {
  return `import OpenAI from 'openai';\n\nconst client = new OpenAI({ baseURL: ${JSON.stringify(`${origin}/v1`)}, apiKey: process.env.SLIPFORM_KEY ?? 'none' });\nconst answer = await client.chat.completions.create(${JSON.stringify({ ...body, model: body.model || 'local', stream: undefined }, null, 2)});\nconsole.log(answer.choices[0].message.content);\n`;
}

export function pytest(texts, schema) {
  const script = texts.map((text) => `    ${python(text || '')},\n`).join('');
  return `from slipform import Budget, Client, Options\nfrom slipform.providers.router import Router\nfrom slipform.testing import FakeModel\n\nSCHEMA = ${python(schema)}\nANSWERS = [\n${script}]\n\n\ndef test_the_recorded_answers_become_a_valid_value() -> None:\n    router = Router({"fake": FakeModel(ANSWERS)})\n    client = Client("fake/recorded", router=router, options=Options(budget=Budget(attempts=${texts.length})))\n    assert client.ask(SCHEMA, "recorded") is not None\n`;
}
