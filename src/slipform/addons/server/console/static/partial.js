// Read JSON that is not over yet: the values so far, and which of them are still open.

/** The value that a beginning of JSON stands for; strings and containers that are still open are taken as they are. */
export function parsePartial(text) {
  let at = 0;
  const blank = () => { while (at < text.length && ' \t\r\n'.includes(text[at])) at += 1; };
  const OPEN = Symbol('open');
  function value() {
    blank();
    const c = text[at];
    if (c === undefined) return OPEN;
    if (c === '{') return object();
    if (c === '[') return array();
    if (c === '"') return string().value;
    const match = /^(?:-?\d[\d.eE+-]*|true|false|null)/.exec(text.slice(at, at + 400));
    if (!match) return OPEN;
    at += match[0].length;
    if (at >= text.length && /\d$/.test(match[0]) === false && !['true', 'false', 'null'].includes(match[0])) return OPEN;
    try { return JSON.parse(match[0]); } catch { return OPEN; }
  }
  function string() {
    const start = at;
    at += 1;
    while (at < text.length && text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
    const closed = at < text.length;
    const raw = text.slice(start + 1, Math.min(at, text.length)).replace(/\\(?:u[0-9a-fA-F]{0,3})?$/, '');
    at += 1;
    try { return { value: JSON.parse(`"${raw}"`), closed }; } catch { return { value: raw, closed }; }
  }
  function object() {
    const found = new Map();
    at += 1;
    for (;;) {
      blank();
      if (text[at] === '}') { at += 1; break; }
      if (text[at] === ',') { at += 1; continue; }
      if (text[at] !== '"') break;
      const key = string();
      blank();
      if (!key.closed || text[at] !== ':') break;
      at += 1;
      const inner = value();
      if (inner === OPEN) { found.set(key.value, undefined); break; }
      found.set(key.value, inner);
    }
    return found;
  }
  function array() {
    const found = [];
    at += 1;
    for (;;) {
      blank();
      if (text[at] === ']') { at += 1; break; }
      if (text[at] === ',') { at += 1; continue; }
      if (at >= text.length) break;
      const inner = value();
      if (inner === OPEN) break;
      found.push(inner);
    }
    return found;
  }
  const result = value();
  return result === OPEN ? undefined : result;
}

export function show(value) {
  if (value instanceof Map) return `{${[...value].map(([key, each]) => `${JSON.stringify(key)}: ${show(each)}`).join(', ')}}`;
  if (Array.isArray(value)) return `[${value.map(show).join(', ')}]`;
  return value === undefined ? '' : JSON.stringify(value);
}
