// Read what was recorded of a call: its schema, messages, answer, and what was done to which field.

export function parsed(text) {
  try { return JSON.parse(text); } catch { return null; }
}

/** The events of a recorded stream, or the one answer, in any of the APIs. */
export function eventsOf(trace) {
  const text = trace?.response.text || '';
  const whole = parsed(text);
  if (whole) return [whole];
  return text.split('\n').map((line) => parsed(line.replace(/^data: ?/, ''))).filter((each) => each && typeof each === 'object');
}

/** The schema of a request in any of the APIs. */
export function schemaOf(body) {
  if (!body || typeof body !== 'object') return null;
  const format = body.response_format;
  if (format?.json_schema) return format.json_schema.schema || null;
  if (format?.schema) return format.schema;
  const text = body.text?.format;
  if (text?.schema) return text.schema;
  const output = body.output_config?.format;
  if (output?.schema) return output.schema;
  if (body.format && typeof body.format === 'object') return body.format;
  const config = body.generationConfig || {};
  return config.responseJsonSchema || config.responseSchema || null;
}

/** The text of a valid answer, as it was sent. */
export function finalText(trace, row) {
  if (!trace || row.outcome !== 'ok') return null;
  const whole = parsed(trace.response.text);
  if (whole && typeof whole === 'object') {
    const choice = whole.choices && whole.choices[0];
    if (choice?.message) return choice.message.content;
    const block = Array.isArray(whole.content) && whole.content.find((each) => each.type === 'text');
    if (block) return block.text;
    const part = whole.candidates && whole.candidates[0]?.content && whole.candidates[0].content.parts.find((each) => each.text);
    if (part) return part.text;
    for (const item of whole.output || []) for (const each of item.content || []) if (each.text) return each.text;
  }
  return trace.pour.map((each) => each[3]).join('') || null;
}

/** What was done to which field, by its JSON path. */
export function marksOf(attempts) {
  const marks = new Map();
  const last = attempts[attempts.length - 1] || {};
  for (const each of last.patch || []) marks.set(pathOf(each.path), 'patched');
  for (const each of last.violations || []) if (each.path) marks.set(each.path, 'violated');
  return marks;
}

/** A JSON path for a JSON pointer. */
export function pathOf(pointer) {
  return `$${String(pointer).split('/').slice(1).map((step) => (/^\d+$/.test(step) ? `[${step}]` : `.${step.replaceAll('~1', '/').replaceAll('~0', '~')}`)).join('')}`;
}

/** What is known of each value, by JSON path: where it stands in the source, and how sure the model was. */
export function evidenceOf(report) {
  return new Map(Object.entries((report?.evidence) || {}).map(([pointer, found]) => [pathOf(pointer), found]));
}

const textOf = (content) => (typeof content === 'string' ? content : Array.isArray(content) ? content.map((part) => (typeof part === 'string' ? part : part.text || (part.type ? `[${part.type}]` : ''))).join('') : '');

/** The conversation of a request in any of the APIs: who said what. */
export function turnsOf(body) {
  if (!body || typeof body !== 'object') return [];
  const turns = [];
  const system = body.system || body.instructions || (body.systemInstruction && textOf(body.systemInstruction.parts));
  if (system) turns.push(['system', textOf(system)]);
  if (typeof body.input === 'string') turns.push(['user', body.input]);
  if (typeof body.prompt === 'string') turns.push(['user', body.prompt]);
  for (const each of body.messages || (Array.isArray(body.input) ? body.input : []) || []) if (each?.role) turns.push([each.role, textOf(each.content)]);
  for (const each of body.contents || []) turns.push([each.role || 'user', textOf(each.parts)]);
  return turns;
}

/** The tools that a request offers, in any of the APIs: name, description, schema of the arguments. */
export function toolsOf(body) {
  const offered = (body?.tools || []).flatMap((tool) => tool.functionDeclarations || tool.tools || [tool.function || tool]);
  return offered.map((each) => ({ name: each.name || each.type, description: each.description || '', schema: each.parameters || each.input_schema || each.parametersJsonSchema || null }));
}

const asValue = (given) => (typeof given === 'string' ? parsed(given) ?? given : given ?? {});

/** The tool calls in some messages, items or parts of any API: name, id, arguments. */
function callsIn(things) {
  return (things || []).filter(Boolean).flatMap((each) => {
    const call = each.functionCall || each.function || (['tool_use', 'function_call'].includes(each.type) ? each : null);
    const inner = [...(each.tool_calls || []), ...(Array.isArray(each.content) ? each.content : []), ...(each.parts || [])];
    return call?.name ? [{ name: call.name, id: each.call_id || each.id || call.id || '', args: asValue(call.arguments ?? call.input ?? call.args) }] : callsIn(inner);
  });
}

/** The tool calls of a call's answer: whole, or as its report has them. */
export function callsOf(trace) {
  const whole = parsed(trace?.response.text);
  if (!whole) return [];
  return callsIn([whole.choices?.[0]?.message, whole.message, whole.candidates?.[0]?.content, whole.type === 'message' ? whole : null, ...(whole.output || [])]);
}

/** The tool calls of earlier turns, each with its result. */
export function earlierCalls(body) {
  const turns = body?.messages || body?.contents || (Array.isArray(body?.input) ? body.input : []);
  const results = turns.flatMap((turn) => [turn, ...(Array.isArray(turn.content) ? turn.content : []), ...(turn.parts || [])]).map((each) => {
    if (each.role === 'tool') return [each.tool_call_id || each.tool_name, textOf(each.content)];
    if (each.type === 'tool_result') return [each.tool_use_id, textOf(each.content)];
    if (each.type === 'function_call_output') return [each.call_id, textOf(each.output)];
    return each.functionResponse ? [each.functionResponse.id || each.functionResponse.name, JSON.stringify(each.functionResponse.response)] : null;
  }).filter(Boolean);
  return callsIn(turns).map((call) => ({ ...call, result: results.find(([key]) => key === call.id || key === call.name)?.[1] }));
}
