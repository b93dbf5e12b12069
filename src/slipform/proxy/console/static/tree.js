// The schema as a tree that fills in: every field with its type, and the value once there is one.
import { h } from './dom.js';

const DEEPEST = 40;
const MOST = 200;

function resolve(schema, root, hops = 0) {
  if (!schema || typeof schema !== 'object' || hops > 20) return {};
  const reference = schema.$ref;
  if (typeof reference !== 'string' || !reference.startsWith('#')) return schema;
  let node = root;
  for (const step of reference.slice(1).split('/').slice(1)) {
    node = node && node[decodeURIComponent(step).replaceAll('~1', '/').replaceAll('~0', '~')];
  }
  return { ...resolve(node, root, hops + 1), ...Object.fromEntries(Object.entries(schema).filter(([key]) => key !== '$ref')) };
}

function branch(schema, root, value) {
  const options = schema.anyOf || schema.oneOf;
  if (!Array.isArray(options)) return schema;
  const resolved = options.map((each) => resolve(each, root));
  const fits = (each) => (value instanceof Map ? each.type === 'object' || each.properties : Array.isArray(value) ? each.type === 'array' : each.type !== 'object' && each.type !== 'array');
  return { ...resolved.find((each) => each.type !== 'null' && (value === undefined || fits(each))) || resolved[0] || {}, options: resolved };
}

function typeOf(schema) {
  if (schema.options) return schema.options.map(typeOf).join(' | ');
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (Array.isArray(schema.enum)) return schema.enum.slice(0, 6).map((each) => JSON.stringify(each)).join(' | ') + (schema.enum.length > 6 ? ' …' : '');
  let type = Array.isArray(schema.type) ? schema.type.join(' | ') : schema.type || (schema.properties ? 'object' : 'any');
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const high = schema.maximum ?? schema.exclusiveMaximum;
  if (low !== undefined || high !== undefined) type += ` ${low ?? ''}..${high ?? ''}`;
  if (schema.format) type += ` (${schema.format})`;
  return type;
}

/** `marks` says by JSON path what was done to a field: `patched` or `violated`. */
export function tree(schema, value, marks = new Map()) {
  const root = schema || {};
  let budget = MOST;
  function line(name, node, given, path, depth) {
    if (budget-- <= 0) return h('li', { class: 'muted' }, '…');
    const resolved = branch(resolve(node, root), root, given);
    const mark = marks.get(path);
    const sign = mark === 'violated' ? '✗' : mark === 'patched' ? '✎' : given === undefined ? '' : '✓';
    const nested = depth < DEEPEST ? children(resolved, given, path, depth) : [];
    const shown = nested.length || given instanceof Map || Array.isArray(given) ? null : given === undefined ? '' : JSON.stringify(given);
    return h('li', { role: 'treeitem', 'aria-level': depth, ...(nested.length ? { 'aria-expanded': 'true' } : {}), class: given !== undefined ? 'filled' : '' },
      h('span', { class: 'line' }, h('span', { class: 'key' }, name), ' ', h('span', { class: 'type' }, typeOf(resolved)), ' ',
        shown ? h('span', { class: 'value' }, shown.length > 300 ? `${shown.slice(0, 300)}…` : shown) : null, sign ? ` ${sign}` : ''),
      nested.length ? h('ul', { role: 'group' }, nested) : null);
  }
  function children(node, given, path, depth) {
    const found = [];
    if (node.properties || given instanceof Map) {
      const known = Object.keys(node.properties || {});
      for (const name of known) found.push(line(name, node.properties[name], given instanceof Map ? given.get(name) : undefined, `${path}.${name}`, depth + 1));
      if (given instanceof Map) {
        for (const [name, each] of given) if (!known.includes(name)) found.push(line(name, node.additionalProperties || {}, each, `${path}.${name}`, depth + 1));
      }
    } else if (Array.isArray(given)) {
      given.forEach((each, index) => found.push(line(`[${index}]`, (node.prefixItems || [])[index] || node.items || {}, each, `${path}[${index}]`, depth + 1)));
    } else if (node.type === 'array' && node.items && depth < 3) {
      found.push(line('[ ]', node.items, undefined, `${path}[]`, depth + 1));
    }
    return found;
  }
  return h('div', { class: 'tree' }, h('ul', { role: 'tree', 'aria-label': 'Answer by schema', tabindex: '0' }, line(root.title || '$', root, value, '$', 1)));
}
